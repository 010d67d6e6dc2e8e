"""Two processes of one command at a time: both succeed or one is refused in a line, and the bytes are those of one."""

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pipeline import locks
from pipeline.__main__ import main
from pipeline.artifacts.overrides import write_overrides
from pipeline.paths import DataPaths, WorkPaths
from tests.fixtures import iteration
from tests.fixtures.forked import Forked, Process, start_forked
from tests.fixtures.images import split_tree, write_folder
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import NETWORK, folder_arguments, write_params
from tests.fixtures.records import record
from tests.fixtures.tiny_project import environment, hashes, reproduced, write_short_project
from tests.fixtures.training import TIMEOUT_S, kill, run, start, write_project
from tests.fixtures.tuning import command as tune_command
from tests.fixtures.tuning import write_search

__all__ = ["reproduced"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

_STAGES: Mapping[str, Sequence[str]] = {
    "finetune": ["--network", NETWORK],
    "extract": ["--network", NETWORK],
    "reduce": ["--network", NETWORK],
    "filter": ["--network", NETWORK],
    "train": ["--study", "tiny"],
    "report": [],
}
_DVC_TIMEOUT_S = 900  # for one run, while other jobs use the machine
# Measured, and different in each run.
_COSTS = {"costs.html", "resources.json"}


def _stage(name: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", f"pipeline.stages.{name}", *_STAGES.get(name, []), *folder_arguments(folder)]


def _digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in _COSTS]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _two_at_once(command: Sequence[str]) -> list[int]:
    """Start two, wait for both, and return the exit codes; one that is refused says why in one line."""
    processes: list[Process] = []
    codes = []
    try:
        processes += [start(command), start(command)]
        for process in processes:
            _, err = process.communicate(timeout=3 * TIMEOUT_S)
            assert process.returncode in (0, 2), err
            if process.returncode:
                assert "already running as process" in str(printed_error(err))
            codes.append(process.returncode)
    finally:
        for process in processes:
            kill(process)
    assert 0 in codes
    return codes


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny project, of which every stage has run once."""
    folder = tmp_path_factory.mktemp("project")
    tsne = {"perplexity": 5.0, "early_exaggeration_iter": 10, "n_iter": 10, "n_jobs": 1}
    data = write_project(
        folder,
        study={"arms": ["full", "filtered"], "seeds": [0], "models": ["small_cnn"]},
        reduce={"pca": {"n_components": 4}, "tsne": tsne, "n_neighbors": 5},
        filter={"scorer": {"name": "dbscan", "min_samples": 3}, "drop_fraction": 0.1},
    )
    shutil.rmtree(data.kept(NETWORK).parent)
    record(data, "prepare")
    write_overrides(data.overrides, [])
    for name in _STAGES:
        done = run(_stage(name, folder))
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.subprocess
@pytest.mark.parametrize("stage", _STAGES)
def test_a_stage(project: Path, stage: str, tmp_path: Path) -> None:
    """Without earlier results: both would compute."""
    copy = tmp_path / "copy"
    shutil.copytree(
        project / "data", copy / "data", ignore=lambda folder, _: [stage] if folder.endswith("data") else []
    )
    shutil.copy(project / "params.yaml", copy)
    _two_at_once(_stage(stage, copy))
    assert _digests(copy / "data" / stage) == _digests(project / "data" / stage)
    assert not list(copy.rglob(".*.tmp"))


@pytest.mark.subprocess
def test_prepare(tmp_path: Path) -> None:
    images = write_folder(tmp_path / "images", split_tree())
    results = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        write_params(
            folder, prepare={"dataset": "image_folder", "image_size": 8, "test_size": None, "path": str(images)}
        )
        if name == "one":
            done = run(_stage("prepare", folder))
            assert done.returncode == 0, done.stderr
        else:
            _two_at_once(_stage("prepare", folder))
        results.append(_digests(folder / "data"))
    assert results[0] == results[1]


@pytest.mark.subprocess
def test_a_search(tmp_path: Path) -> None:
    results = []
    for name in ("one", "two"):
        data = write_search(tmp_path / name, trials=2, epochs=2, max_concurrent_trials=1)
        if name == "one":
            done = run(tune_command(tmp_path / name))
            assert done.returncode == 0, done.stderr
        else:
            _two_at_once(tune_command(tmp_path / name))
        results.append(_digests(data.root))
    measured = {name for name in results[0] if name.endswith(("summary.json", "tuning.html", "provenance.json"))}
    assert measured
    assert {name: digest for name, digest in results[0].items() if name not in measured} == {
        name: digest for name, digest in results[1].items() if name not in measured
    }


@pytest.mark.subprocess
@pytest.mark.parametrize("command", ["pack", "page"])
def test_a_command_that_writes_one_file(project: Path, command: str, tmp_path: Path) -> None:
    """Each writes a temporary file of its own, and the last replaces the file."""
    argv = {
        "pack": ["-m", "pipeline", "runs", "pack", str(tmp_path / "results.tar.xz"), *folder_arguments(project)],
        "page": ["-m", "viz", "export", str(tmp_path / "map.html"), *folder_arguments(project)[:4]],
    }[command]
    done = run([sys.executable, *argv])
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    assert _two_at_once([sys.executable, *argv]) == [0, 0]
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_bytes() == content


@pytest.mark.subprocess
def test_exports_to_one_folder(project: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline", "export", str(tmp_path / "one"), *folder_arguments(project)[:4]]
    done = run(command)
    assert done.returncode == 0, done.stderr
    command[4] = str(tmp_path / "two")
    _two_at_once([*command, "--force"])
    assert _digests(tmp_path / "two") == _digests(tmp_path / "one")


def _arguments(command: str, project: Path, folder: Path) -> list[str]:
    """Return the arguments of a command on `folder`, a copy of the project."""
    features = DataPaths(root=folder / "data").features(NETWORK)
    return {
        "iterate": ["--network", NETWORK, *folder_arguments(folder)],
        "landscape": ["--study", "tiny", "--images", "20", "--directions", "1", *folder_arguments(folder)],
        "runs": ["import", str(project / "work"), *folder_arguments(folder)],
        "filter-features": [
            "--features", str(features), "--labels", str(folder / "data/prepare/train.parquet"),
            "--scorer", "knn_agreement", "--neighbors", "5",
            "--params", str(folder / "params.yaml"), "--out", str(folder / "out"),
        ],
    }[command]  # fmt: skip


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("command", "written"),
    [("landscape", "data/landscape"), ("runs", "work/cells"), ("filter-features", "out")],
)
def test_a_command_that_writes_a_folder(project: Path, command: str, written: str, tmp_path: Path) -> None:
    """Once and twice, in copies of the project under one path."""
    folder, results = tmp_path / "copy", []
    argv = [sys.executable, "-m", "pipeline", command, *_arguments(command, project, folder)]
    for twice in (False, True):
        shutil.copytree(project, folder)
        if command == "runs":
            shutil.rmtree(folder / written)
        if twice:
            _two_at_once(argv)
        else:
            done = run(argv)
            assert done.returncode == 0, done.stderr
        results.append(_digests(folder / written))
        assert not list(folder.rglob(".*.tmp"))
        shutil.rmtree(folder)
    assert results[0] == results[1] != {}


@pytest.mark.parametrize(
    ("command", "lock"), [("iterate", f"iterate@{NETWORK}"), ("landscape", "landscape@tiny"), ("runs", "train")]
)
def test_a_command_that_runs_already_is_refused(
    project: Path, command: str, lock: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_LOCK_GRACE_S", 0.0)
    lock_file = WorkPaths(root=project / "work").lock(lock)
    with locks.file_lock(lock_file, lock), pytest.raises(SystemExit) as ended:
        sys.exit(main([command, *_arguments(command, project, project)]))
    assert ended.value.code == 2
    assert f"already running as process {os.getpid()}; " in str(printed_error(capsys.readouterr().err))


@pytest.mark.subprocess
def test_rounds_of_iterate(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    iteration.write_project(one, finetune={"budget": {"steps": 2}})
    iteration.pretend_first_round(one)
    shutil.copytree(one, two)
    alone = start(iteration.iterate_command(one, "--rounds", "1"))
    try:
        _two_at_once(iteration.iterate_command(two, "--rounds", "1"))
        _, err = alone.communicate(timeout=3 * TIMEOUT_S)
    finally:
        kill(alone)
    assert alone.returncode == 0, err
    assert iteration.results(two) == iteration.results(one)
    assert not list(two.rglob(".*.tmp"))


@pytest.mark.subprocess
def test_dvc(reproduced: Path, tmp_path: Path) -> None:
    """DVC refuses a stage that another DVC runs; the same command then ends in the result of one."""
    project = write_short_project(tmp_path / "project")
    both = [_repro(project), _repro(project)]
    assert 0 in [process.wait(_DVC_TIMEOUT_S) for process in both]
    assert _repro(project).wait(_DVC_TIMEOUT_S) == 0
    assert hashes(project) == hashes(reproduced)
    assert (project / "dvc.lock").read_bytes() == (reproduced / "dvc.lock").read_bytes()


def _repro(project: Path) -> Forked:
    return start_forked([sys.executable, "-m", "tests.fixtures.make_repro"], cwd=project, environ=environment())
