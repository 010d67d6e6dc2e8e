"""`iterate` in real processes: results of its rounds, resumption after a kill, and exit codes."""

import csv
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pipeline.artifacts.files import read_json
from pipeline.artifacts.tables import read_parquet
from pipeline.commands.iterate.rounds import STAGES
from pipeline.paths import DataPaths
from tests.fixtures.interrupted_study import resumed_steps
from tests.fixtures.iteration import (
    N,
    is_planted,
    iterate_command,
    pretend_first_round,
    results,
    round_folder,
    write_project,
)
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.process_tree import alive, descendants
from tests.fixtures.projects import NETWORK
from tests.fixtures.training import command, files_below, kill, run, start, wait_until

_ENDS_WITHIN_S = 45
_ROUNDS_END_WITHIN_S = 500
_TWO_ROUNDS = ("--rounds", "2", "--min-jaccard", "1")


@pytest.fixture(scope="module")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose round 0 the stages themselves have run."""
    folder = tmp_path_factory.mktemp("filtered")
    write_project(folder)
    for stage in STAGES:
        done = run(command(stage, folder))
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def finished(filtered: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same after two rounds without interruption."""
    folder = _copy(filtered, tmp_path_factory.mktemp("finished") / "project")
    done = run(iterate_command(folder, *_TWO_ROUNDS), timeout=_ROUNDS_END_WITHIN_S)
    assert done.returncode == 0, done.stderr
    return folder


def _copy(project: Path, folder: Path) -> Path:
    """With parameters that name the same images."""
    return Path(shutil.copytree(project, folder, symlinks=True))


@pytest.mark.slow
def test_each_round_scores_all_images_by_a_network_of_kept_ones(finished: Path) -> None:
    data = DataPaths(root=finished / "data")
    reported = read_json(data.recursive_rounds(NETWORK))["rounds"]
    assert [row["round"] for row in reported] == [0, 1, 2]
    before = read_parquet(data.points(NETWORK))
    for row in reported[1:]:
        kept, everything = (DataPaths(root=round_folder(finished, row["round"]) / name) for name in ("kept", "all"))
        trained_on = read_parquet(kept.manifest("train"))["path"]
        assert trained_on.to_pylist() == before.filter(before["keep"])["path"].to_pylist()
        assert read_json(kept.finetune_metrics(NETWORK))["top1"] == row["top1"]
        before = read_parquet(everything.points(NETWORK))
        assert before["path"].equals(read_parquet(data.manifest("train"))["path"])
        assert before["keep"].to_pylist().count(True) == row["n_kept"]


@pytest.mark.slow
def test_the_last_round_finds_the_planted_labels(finished: Path) -> None:
    points = read_parquet(DataPaths(root=round_folder(finished, 2) / "all").points(NETWORK))
    planted, dropped = is_planted(points["path"].to_pylist()), ~points["keep"].to_numpy()
    # By chance a dropped image would be a planted one as often as any: one in fifteen.
    assert planted[dropped].mean() > 5 * planted.mean()


@pytest.mark.slow
def test_the_overrides_bring_the_last_round_about(finished: Path, tmp_path: Path) -> None:
    folder = _copy(finished, tmp_path / "project")
    data = DataPaths(root=folder / "data")
    with data.recursive_overrides(NETWORK).open(newline="") as file:
        notes = [row["note"] for row in csv.DictReader(file)]
    assert set(notes) <= {"recursive filter, round 2"}
    assert len(notes) == read_json(data.recursive_rounds(NETWORK))["overrides_added"]
    shutil.copy(data.recursive_overrides(NETWORK), data.overrides)
    done = run(command("filter", folder))
    assert done.returncode == 0, done.stderr
    last = read_parquet(DataPaths(root=round_folder(finished, 2) / "all").points(NETWORK))
    assert read_parquet(data.points(NETWORK))["keep"].equals(last["keep"])


@pytest.mark.slow
def test_finished_rounds_are_not_run_again(finished: Path) -> None:
    before = results(finished)
    files = {path: path.stat().st_mtime_ns for path in round_folder(finished, 1).rglob("*.provenance.json")}
    assert len(files) == len(STAGES) - 1
    done = run(iterate_command(finished, *_TWO_ROUNDS), timeout=_ROUNDS_END_WITHIN_S)
    assert done.returncode == 0
    rounds = [line.split(":")[0] for line in done.stderr.splitlines()]
    assert rounds == ["round 1 of at most 2", "round 2 of at most 2"]
    assert results(finished) == before
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert [line.split()[0] for line in done.stdout.splitlines()[1:4]] == ["0", "1", "2"]
    copy = f"cp {finished}/data/recursive/{NETWORK}/overrides.csv {finished}/data/overrides.csv && dvc repro"
    assert done.stdout.splitlines()[-1] == f"to use round 2: {copy}"


@pytest.mark.slow
def test_iterate_killed_in_finetune_ends_in_the_same_bytes(filtered: Path, finished: Path, tmp_path: Path) -> None:
    folder = _copy(filtered, tmp_path / "project")
    for sent, code in ((signal.SIGTERM, 75), (signal.SIGKILL, -signal.SIGKILL)):
        assert _stopped(folder, partial(_has_checkpoint, folder), sent, fresh=False)[0] == code
    assert not DataPaths(root=round_folder(folder, 1) / "kept").extractor(NETWORK).exists()
    done = run(iterate_command(folder, *_TWO_ROUNDS), timeout=_ROUNDS_END_WITHIN_S)
    assert done.returncode == 0, done.stderr
    assert resumed_steps(done.stderr)
    assert results(folder) == results(finished)


def _has_checkpoint(folder: Path) -> bool:
    return bool(files_below(round_folder(folder, 1) / "work", "step-*.pt"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "code", "start"),
    [
        (signal.SIGTERM, 75, "terminated: "),
        (signal.SIGINT, 130, "interrupted; "),
        (signal.SIGKILL, -signal.SIGKILL, None),
    ],
)
def test_the_stage_ends_with_the_command(tmp_path: Path, sent: signal.Signals, code: int, start: str | None) -> None:
    """While the stage is still importing, before it could have a say."""
    write_project(tmp_path)
    pretend_first_round(tmp_path)
    metrics = DataPaths(root=round_folder(tmp_path, 1) / "kept").prepare_metrics
    ended, error = _stopped(tmp_path, metrics.exists, sent)
    assert ended == code
    assert start is None or error.splitlines()[-1].startswith(start)


def _stopped(
    folder: Path, condition: Callable[[], bool], sent: signal.Signals, *, fresh: bool = True
) -> tuple[int, str]:
    """Send `sent` to the command alone once it runs a stage and the condition holds; all that it started must end.

    Args:
        fresh: its stages are interpreters that import for seconds, else forks.

    Returns:
        Its exit code and its output, with that of the stage.
    """
    process, below = start(iterate_command(folder, *_TWO_ROUNDS), fresh=fresh), set[int]()
    try:
        wait_until(lambda: descendants(process.pid) and condition(), process)
        below = descendants(process.pid)
        process.send_signal(sent)
        process.wait(timeout=_ENDS_WITHIN_S)
        end = time.monotonic() + _ENDS_WITHIN_S
        while alive(below):
            assert time.monotonic() < end, "a stage outlived the command"
            time.sleep(0.02)
        return process.returncode, process.communicate()[1]
    finally:
        kill(process, *alive(below))


@pytest.mark.slow
def test_iterate_passes_on_error_and_exit_code_of_a_stage(tmp_path: Path) -> None:
    """Round 0 leaves too few images for a batch."""
    write_project(tmp_path, finetune={"batch_size": N})
    pretend_first_round(tmp_path)
    done = run(iterate_command(tmp_path))
    assert done.returncode == 2
    progress, _ = done.stderr.splitlines()
    assert progress.startswith("round 1: finetune ")
    assert printed_error(done.stderr).key == "finetune.batch_size"
    assert done.stdout == ""
