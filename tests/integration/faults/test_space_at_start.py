"""Without room for its results a stage ends before it computes anything."""

import shutil
from pathlib import Path

import pytest

from pipeline.artifacts.files import read_json
from pipeline.features import frozen
from pipeline.paths import WorkPaths
from pipeline.runs import folds
from pipeline.stages import finetune as finetune_stage
from pipeline.stages import train as train_stage
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import NETWORK
from tests.fixtures.training import stage, write_imagenet_weights, write_project
from tests.unit.test_processes_space import largest_file

_TOO_SMALL = 8 << 20  # the tables fit, a ResNet-18 does not


@pytest.mark.parametrize(("name", "begins"), [("finetune", "train_folds"), ("train", "execute_run")])
def test_no_room_for_a_network_is_found_before_training(
    name: str, begins: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it trains")

    data = write_project(tmp_path)
    monkeypatch.setattr(finetune_stage if name == "finetune" else train_stage, begins, never)
    with largest_file(_TOO_SMALL):
        assert stage(name, tmp_path) == 2
    error = printed_error(capsys.readouterr().err)
    assert error.key == str(data.root / name)
    assert "MB here" in str(error)
    assert [path for path in (data.root / name).rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("trainable", ["all", "head"])
def test_no_room_in_the_work_folder_is_found_before_training(
    trainable: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it trains")

    weights = str(write_imagenet_weights(tmp_path / "weights"))
    write_project(tmp_path, finetune={"weights": weights, "trainable": trainable, "folds": 2})
    # As if data/ were on another disk, which has room.
    monkeypatch.setattr(finetune_stage, "check_space", lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr(folds, "train", never)
        patch.setattr(frozen, "fit_frozen_networks", never)
        with largest_file(_TOO_SMALL):
            assert stage("finetune", tmp_path) == 2
    error = printed_error(capsys.readouterr().err)
    cache = WorkPaths(root=tmp_path / "work").file_cache(f"finetune@{NETWORK}")
    assert error.key == str(cache)
    assert "will write 89." in str(error), "two networks of 44.7 MB"
    assert stage("finetune", tmp_path) == 0
    shutil.rmtree(tmp_path / "data" / "finetune")
    with monkeypatch.context() as patch:
        patch.setattr(folds, "check_space", never)
        assert stage("finetune", tmp_path) == 0, "nothing is left to write there"


def test_a_file_in_place_of_the_folder_is_found_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_project(tmp_path)
    before = read_json(data.prepare_metrics)
    (data.root / "finetune").write_text("")
    assert stage("finetune", tmp_path) == 2
    assert "a folder is needed here" in str(printed_error(capsys.readouterr().err))
    assert read_json(data.prepare_metrics) == before
