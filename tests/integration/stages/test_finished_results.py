"""`finetune` and `extract` use their finished results again: nothing is computed twice, and the bytes are equal."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.artifacts.files import read_json, write_json
from pipeline.features import extract as features_extract
from pipeline.features import frozen
from pipeline.paths import DataPaths, WorkPaths
from pipeline.runs import folds
from pipeline.stages import extract
from pipeline.training import run_key
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import NETWORK
from tests.fixtures.records import record_again
from tests.fixtures.slow import quick_first
from tests.fixtures.training import stage, write_project

_FINETUNE: Mapping[str, Any] = {"batch_size": 20, "budget": {"steps": 2}, "folds": 2}


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _never(*_: object, **__: object) -> None:
    raise AssertionError("computed again")


def _counted(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[str]:
    """Return a list that gets an entry with each call of a function of a module."""
    function, calls = getattr(module, name), list[str]()

    def counting(*arguments: Any, **keywords: Any) -> Any:
        calls.append(name)
        return function(*arguments, **keywords)

    monkeypatch.setattr(module, name, counting)
    return calls


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project after `finetune` and `extract`."""
    folder = tmp_path_factory.mktemp("made")
    write_project(folder, finetune=_FINETUNE)
    assert stage("finetune", folder) == stage("extract", folder) == 0
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Path:
    """A copy of the project without the outputs of the stages."""
    shutil.copytree(made, tmp_path / "copy")
    for name in ("finetune", "extract"):
        shutil.rmtree(tmp_path / "copy/data" / name)
    return tmp_path / "copy"


def _resources(folder: Path, name: str) -> dict[str, Any]:
    record: dict[str, Any] = read_json(WorkPaths(root=folder / "work").resources(f"{name}@{NETWORK}"))
    return record


def test_finished_stages_compute_nothing_and_write_the_same_bytes(
    project: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folds, "train", _never)
    assert stage("finetune", project) == 0
    assert _bytes(project / "data/finetune") == _bytes(made / "data/finetune")
    (entry,) = WorkPaths(root=project / "work").file_cache(f"extract@{NETWORK}").glob("*/entry.json")
    write_json(entry, {**read_json(entry), "seconds": 1e6})
    monkeypatch.setattr(extract, "_extract_train", _never)
    assert stage("extract", project) == 0
    assert _bytes(project / "data/extract") == _bytes(made / "data/extract")
    for name in ("finetune", "extract"):
        ours, theirs = _resources(project, name), _resources(made, name)
        assert ours["images"] == theirs["images"]
        assert ours["joules"]["cpu"] is None
    # The duration of the first process counts.
    assert _resources(project, "extract")["wall_s"] > 1e6


@pytest.mark.parametrize(
    "change", quick_first(1, [{"seed": 5}, {"learning_rate": 0.01}, {"folds": 3}, {"budget": {"steps": 3}}])
)
def test_another_setting_trains_again(
    project: Path, change: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {**_FINETUNE, **change}
    write_project(project, finetune=keys)
    calls = _counted(monkeypatch, folds, "train")
    assert stage("finetune", project) == 0
    assert len(calls) == keys["folds"]


@pytest.mark.slow
@pytest.mark.parametrize("what", quick_first(1, ["training_code_digest", "cpu_arithmetic"]))
def test_other_code_and_another_machine_train_again(project: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_key, what, lambda: "another of its kind")
    calls = _counted(monkeypatch, folds, "train")
    assert stage("finetune", project) == 0
    assert len(calls) == _FINETUNE["folds"]


def test_settings_that_change_no_weight_only_evaluate_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_project(project, finetune={**_FINETUNE, "eval_batch_size": 7, "checkpoint": {"steps": 1}})
    monkeypatch.setattr(folds, "train", _never)
    assert stage("finetune", project) == 0


@pytest.fixture
def trained(made: Path, tmp_path: Path) -> Path:
    """A copy of the project with all outputs."""
    shutil.copytree(made, tmp_path / "complete")
    return tmp_path / "complete"


_EXTRACT_CHANGES: dict[str, Callable[[Path, pytest.MonkeyPatch], object]] = {
    "network": lambda folder, _: _other_network(folder),
    "flip_tta": lambda folder, _: write_project(folder, finetune=_FINETUNE, extract={"flip_tta": True}),
    "batch size": lambda folder, _: write_project(folder, finetune=_FINETUNE, extract={"batch_size": 7}),
    "code": lambda _, patch: patch.setattr(features_extract, "code_digest", lambda *_, **__: "another"),
    "machine": lambda _, patch: patch.setattr(run_key, "cpu_arithmetic", lambda: "another"),
    "package": lambda _, patch: patch.setattr("pipeline.features.extract.metadata.version", lambda _: "0"),
    "images": lambda folder, _: _other_images(folder),
}


def _other_images(folder: Path) -> None:
    path = DataPaths(root=folder / "data").images("train")
    np.lib.format.open_memmap(path, mode="r+")[0] ^= 1


def _other_network(folder: Path) -> None:
    path = DataPaths(root=folder / "data").extractor(NETWORK)
    content = torch.load(path, weights_only=True)
    content["state_dict"]["backbone.fc.bias"] += 1
    torch.save(content, path)
    record_again(DataPaths(root=folder / "data"))


@pytest.mark.parametrize("change", quick_first(1, _EXTRACT_CHANGES))
def test_a_change_of_features_extracts_again(trained: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _EXTRACT_CHANGES[change](trained, monkeypatch)
    calls = _counted(monkeypatch, extract, "_extract_train")
    assert stage("extract", trained) == 0
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["finetune", "extract"])
def test_a_damaged_entry_is_refused_in_one_line(trained: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    finished = WorkPaths(root=trained / "work").file_cache(f"{name}@{NETWORK}")
    for path in finished.rglob("*.*"):
        path.write_bytes(b"damaged")
    assert stage(name, trained) == 2
    assert Path(printed_error(capsys.readouterr().err).key).is_relative_to(finished)


@pytest.mark.slow
def test_heads_are_fitted_once(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / "start.pt"
    shutil.copy(DataPaths(root=made / "data").extractor(NETWORK), weights)
    (tmp_path / "project").mkdir()
    data = write_project(
        tmp_path / "project", finetune={"trainable": "head", "weights": str(weights), "folds": 2, "batch_size": 20}
    )
    assert stage("finetune", tmp_path / "project") == 0
    before = _bytes(data.root / "finetune")
    shutil.rmtree(data.root / "finetune")
    with monkeypatch.context() as patched:
        patched.setattr(frozen, "fit_frozen_networks", _never)
        assert stage("finetune", tmp_path / "project") == 0
    assert _bytes(data.root / "finetune") == before
    # Other initial weights give another head.
    content = torch.load(weights, weights_only=True)
    content["state_dict"]["backbone.conv1.weight"] *= 1.5
    torch.save(content, weights)
    calls = _counted(monkeypatch, frozen, "fit_frozen_networks")
    assert stage("finetune", tmp_path / "project") == 0
    assert len(calls) == 1
    assert json.loads(data.finetune_metrics(NETWORK).read_text())["trained"] == "head"
