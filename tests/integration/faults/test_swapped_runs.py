"""A network of another run, or a filter of another network, is refused by the commands that measure and search."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.__main__ import main
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.paths import DataPaths, WorkPaths
from pipeline.runs.record import CHECKSUMS
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import NETWORK, folder_arguments
from tests.fixtures.records import record
from tests.fixtures.slow import quick_first
from tests.fixtures.training import runs_of, stage, write_kept
from tests.fixtures.tuning import NAME, write_search

_STUDY: Mapping[str, Any] = {
    "arms": ["full", "filtered"], "seeds": [0, 1], "keep_weights": "all", "models": ["small_cnn", "resnet18"],
}  # fmt: skip
_TRAIN = "`python -m pipeline.stages.train --study tiny`"
_FILTER = f"`python -m pipeline.stages.filter --network {NETWORK}`"
_LANDSCAPE = ["landscape", "--study", "tiny", "--images", "8", "--directions", "1"]
_NOISE_SCALE = ["noise-scale", "--study", "tiny", "--parts", "4"]
_BRIEF = ["noise-scale", "--study", "tiny", "--parts", "4", "--steps", "1"]
_CRITICAL_BATCH = ["critical-batch", "--study", "tiny", "--after", "1", "--images", "16", "--factors", "2"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the finished runs of two networks, and records of its images and of its filter."""
    folder = tmp_path_factory.mktemp("swapped") / "project"
    data = write_search(folder, study_keys=_STUDY)
    for name in ("prepare", "filter"):
        record(data, name, NETWORK if name == "filter" else None)
    assert stage("train", folder) == 0
    return folder


def _error(command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the line with which a command ends."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([*command, *folder_arguments(folder)])
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    return str(printed_error(shown.err))


@contextmanager
def _replaced(path: Path, write: Callable[[], object]) -> Iterator[None]:
    before = path.read_bytes()
    try:
        write()
        assert not path.exists() or path.read_bytes() != before
        yield
    finally:
        path.write_bytes(before)


def _weights(folder: Path, **keys: Any) -> Path:
    (row,) = (row for row in runs_of(DataPaths(root=folder / "data")) if keys.items() <= row.items())
    return WorkPaths(root=folder / "work").ledger / str(row["fingerprint"]) / "weights.pt"


@pytest.mark.parametrize("command", [_LANDSCAPE, _NOISE_SCALE], ids=lambda command: command[0])
@pytest.mark.parametrize(
    "other", quick_first(1, [{"model": "small_cnn", "seed": 1}, {"model": "resnet18", "seed": 0}]), ids=str
)
def test_weights_of_another_run(
    project: Path, command: list[str], other: Mapping[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = _weights(project, model="small_cnn", arm="full", seed=0)
    source = _weights(project, arm="full", **other)
    with _replaced(path, lambda: shutil.copyfile(source, path)):
        line = _error(command, project, capsys)
    assert line.startswith(f"{path.parent}: ")
    assert "weights.pt has changed" in line
    assert _TRAIN in line


@pytest.mark.parametrize("command", [_LANDSCAPE, _NOISE_SCALE], ids=lambda command: command[0])
def test_an_entry_of_another_run(project: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Its checksums are right, of that run."""
    folder = _weights(project, model="small_cnn", arm="full", seed=0).parent
    other = _weights(project, model="small_cnn", arm="full", seed=1).parent
    aside = folder.with_name("aside")
    folder.rename(aside)
    try:
        shutil.copytree(other, folder)
        line = _error(command, project, capsys)
    finally:
        shutil.rmtree(folder)
        aside.rename(folder)
    assert line.startswith(f"{folder}: is the entry of run {other.name}; ")
    assert _TRAIN in line


@pytest.mark.parametrize("command", [_LANDSCAPE, _NOISE_SCALE], ids=lambda command: command[0])
def test_an_entry_without_checksums(project: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As earlier versions wrote it: another architecture is found."""
    path = _weights(project, model="small_cnn", arm="full", seed=0)
    source = _weights(project, model="resnet18", arm="full", seed=0)
    checksums = path.with_name(CHECKSUMS)
    with _replaced(path, lambda: shutil.copyfile(source, path)), _replaced(checksums, checksums.unlink):
        line = _error(command, project, capsys)
    assert line.startswith(f"{path}: has network resnet18, and the run has small_cnn; remove {path.parent}")
    assert _TRAIN in line


@pytest.mark.slow
def test_the_named_command_makes_it_good(project: Path, tmp_path: Path) -> None:
    copy = tmp_path / "project"
    shutil.copytree(project, copy)
    path = _weights(copy, model="small_cnn", arm="full", seed=0)
    whole = path.read_bytes()
    shutil.copyfile(_weights(copy, model="small_cnn", arm="full", seed=1), path)
    assert stage("train", copy) == 0
    assert path.read_bytes() == whole
    assert main([*_NOISE_SCALE, *folder_arguments(copy)]) == 0


@pytest.mark.parametrize(
    "command", [_NOISE_SCALE, _BRIEF, _CRITICAL_BATCH, ["tune", NAME]], ids=["kept", "brief", "critical-batch", "tune"]
)
def test_a_filter_of_another_network(project: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    data = DataPaths(root=project / "data")
    path = data.kept(NETWORK)
    with _replaced(path, lambda: write_kept(data, np.arange(60) % 7 != 0)):
        line = _error(command, project, capsys)
    assert line.startswith(f"{path}: is not what filter@{NETWORK} wrote")
    assert _FILTER in line


@pytest.mark.parametrize("command", [_LANDSCAPE, _NOISE_SCALE], ids=lambda command: command[0])
def test_a_table_of_another_study(project: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = DataPaths(root=project / "data").runs("tiny")
    with _replaced(path, lambda: write_parquet(path, read_parquet(path).slice(1))):
        line = _error(command, project, capsys)
    assert line.startswith(f"{path}: is not what train@tiny wrote")
    assert _TRAIN in line
