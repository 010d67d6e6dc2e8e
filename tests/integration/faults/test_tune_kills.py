"""A search that is killed at any moment and started again loses and repeats nothing, and ends in the same bytes."""

import json
import random
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.paths import DataPaths
from tests.fixtures.forked import Process
from tests.fixtures.interrupted_study import HOOKS, KILL_SEED, MORE_KILLS, kill_one
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.process_tree import alive
from tests.fixtures.training import files_below, kill, run, start, wait_until
from tests.fixtures.tuning import NAME, command, results_of, tune, write_search

SEARCH: dict[str, Any] = {
    "sampler": {"name": "tpe", "n_startup_trials": 2},
    "trials": 4,
    "max_concurrent_trials": 2,
    "epochs": 4,
    "resume_pruned": 1,
}
_SHORT: dict[str, Any] = {"trials": 2, "epochs": 2, "max_concurrent_trials": 1}
# Signal and part of a path -> the last call of a short search before which it is sent.
_FAULTS = {("SIGKILL", "journal.log"): 9, ("SIGTERM", "/.step-"): 4, ("SIGKILL", "/.step-"): 5}
_REPORT = 7  # Optuna's operation code of an accuracy after an epoch


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> DataPaths:
    folder = tmp_path_factory.mktemp("uninterrupted")
    data = write_search(folder, **SEARCH)
    finish(folder)
    return data


def _seeded_faults(count: int) -> list[tuple[str, int]]:
    """Return faults at random moments, and the exit code of each."""
    rng = random.Random(KILL_SEED)
    faults = []
    for _ in range(count):
        (sent, file), last = rng.choice(list(_FAULTS.items()))
        faults.append((f"{sent} self {file} {rng.randint(1, last)}", 75 if sent == "SIGTERM" else -signal.SIGKILL))
    return faults


def begin(folder: Path) -> Process:
    return start(command(folder), environ=recording(folder))


def finish(folder: Path) -> None:
    done = run(command(folder), environ=recording(folder))
    assert done.returncode == 0, done.stderr


def recording(folder: Path) -> dict[str, str]:
    """Return an environment in which `saved` in the folder lists every saved step; all but a trial's last are saved."""
    return {"PYTHONPATH": str(HOOKS), "SAVED": str(folder / "saved")}


def steps_taken(data: DataPaths) -> Counter[str]:
    """Return trial and step -> number of times that it was trained."""
    # Drop the digest in the name: a state contains its duration.
    lines = (data.root.parent / "saved").read_text().splitlines()
    return Counter(line.partition(".")[0] for line in lines)


def reported(folder: Path) -> Counter[tuple[int, int]]:
    """Return (trial, epoch) -> number of its entries in the journal, without an incomplete line."""
    lines = [line for path in files_below(folder, "journal.log") for line in path.read_text().splitlines(keepends=True)]
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    return Counter((entry["trial_id"], entry["step"]) for entry in entries if entry["op_code"] == _REPORT)


def checkpointed(folder: Path) -> set[str]:
    return {path.name for path in files_below(folder, "step-*.pt")}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The results of an undisturbed search of two trials."""
    folder = tmp_path_factory.mktemp("short")
    data = write_search(folder, **_SHORT)
    assert tune(folder) == 0
    return results_of(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("SIGKILL self journal.log 9", -signal.SIGKILL),
        ("SIGTERM self /.step- 4", 75),
        ("SIGKILL self /.step- 5", -signal.SIGKILL),
        *_seeded_faults(MORE_KILLS),
    ],
)
def test_a_short_search_ends_in_the_same_bytes(fault: str, code: int, short: dict[str, bytes], tmp_path: Path) -> None:
    """The signal arrives before an entry of the journal, or inside the save of a checkpoint."""
    data = write_search(tmp_path, **_SHORT)
    ended = run(command(tmp_path), environ={"PYTHONPATH": str(HOOKS), "FAULT": fault})
    assert ended.returncode == code, ended.stderr
    assert not data.tuning_provenance(NAME).exists()
    assert tune(tmp_path) == 0
    assert results_of(data) == short


@pytest.mark.slow
def test_killed_three_times_and_ended_by_the_same_command(uninterrupted: DataPaths, tmp_path: Path) -> None:
    rng, data = random.Random(5), write_search(tmp_path, **SEARCH)
    for number in (1, 2, 3):
        process = begin(tmp_path)
        # From its second start on, a search has more reports than the one before.
        before, n_reports = reported(tmp_path), number + rng.randint(0, 1)
        wait_until(lambda n=n_reports: len(reported(tmp_path)) >= n, process)  # type: ignore[misc]
        kill(process)
        assert process.returncode == -signal.SIGKILL
        assert reported(tmp_path) >= before
    finish(tmp_path)
    assert set(reported(tmp_path).values()) == {1}
    taken, once = steps_taken(data), steps_taken(uninterrupted)
    assert taken.keys() == once.keys()
    assert set(once.values()) == {1}
    # Each killed process loses the step that it was training.
    assert taken.total() <= once.total() + 3
    assert results_of(data) == results_of(uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["round_robin", "parallel"])
def test_a_terminated_search_can_be_resumed(scheduler: str, uninterrupted: DataPaths, tmp_path: Path) -> None:
    data = write_search(tmp_path, dask={"scheduler": "local", "workers": 2}, **{**SEARCH, "scheduler": scheduler})
    process = begin(tmp_path)
    wait_until(lambda: checkpointed(tmp_path), process)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 75, said
    assert said.splitlines()[-1].startswith("terminated: ")
    assert checkpointed(tmp_path)
    finish(tmp_path)
    assert results_of(data) == results_of(uninterrupted)


def workers_of(process: Process) -> list[int]:
    """Return Dask's worker processes; a thread of the command starts them, not the main thread."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text(encoding="ascii").split()]
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.slow
def test_a_killed_worker_loses_its_task_alone(uninterrupted: DataPaths, tmp_path: Path) -> None:
    data = write_search(tmp_path, dask={"scheduler": "local", "workers": 2}, **{**SEARCH, "scheduler": "parallel"})
    process, workers = begin(tmp_path), []
    try:
        wait_until(lambda: len(reported(tmp_path)) >= 1, process)
        workers = workers_of(process)
        assert len(workers) == 2
        kill_one(workers[0])
        wait_until(lambda: len(reported(tmp_path)) >= 5, process)
        workers += workers_of(process)
    finally:
        kill(process)
    finish(tmp_path)
    assert not alive(set(workers))
    assert set(reported(tmp_path).values()) == {1}
    assert results_of(data) == results_of(uninterrupted)


@pytest.mark.slow
def test_a_checkpoint_of_another_trial_is_refused(uninterrupted: DataPaths, tmp_path: Path) -> None:
    """The file is whole, and its digest is right."""
    data = write_search(tmp_path, **SEARCH)
    process = begin(tmp_path)
    wait_until(lambda: len({path.parent for path in files_below(tmp_path, "step-*.pt")}) == 2, process)
    kill(process)
    one, other = sorted({path.parent for path in files_below(tmp_path, "step-*.pt")})
    for path in other.glob("step-*.pt"):
        path.unlink()
    for path in one.glob("step-*.pt"):
        shutil.copy(path, other)
    ended = run(command(tmp_path))
    assert ended.returncode == 2, ended.stderr
    error = printed_error(ended.stderr)
    assert error.key == str(other)
    assert "remove the folder" in str(error)
    shutil.rmtree(other)
    finish(tmp_path)
    assert results_of(data) == results_of(uninterrupted)
