"""A study trains networks of torchvision from scratch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.paths import DataPaths
from pipeline.stages import train as train_stage
from pipeline.training.weights import load_trained
from tests.fixtures.printed_errors import key_within, printed_error
from tests.fixtures.training import NAMES, bright_images, runs_of, stage, write_prepared, write_project

_SIDE = 32
_STUDY: dict[str, Any] = {"arms": ["full"], "seeds": [0], "budget": {"steps": 3}, "accuracy_every": {"steps": 2}}


def _write(folder: Path, network: str, **study: Any) -> DataPaths:
    data = write_project(
        folder, study={**_STUDY, "models": [f"torchvision/{network}"], **study}, prepare={"image_size": _SIDE}
    )
    write_prepared(data, size=_SIDE)
    return data


@pytest.mark.slow
def test_a_study_trains_vgg11_at_32_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has 129 million weights, and dropout between layers of 4,096 features."""
    data = _write(tmp_path, "vgg11", keep_weights="none")
    assert stage("train", tmp_path) == 0
    (row,) = runs_of(data)
    assert (row["model"], row["status"], row["steps"]) == ("torchvision/vgg11", "finished", 3)
    assert json.loads(row["settings"])["format"]["crop_size"] == _SIDE
    assert row["top1"] == pytest.approx(np.load(data.correct("tiny")).mean())
    assert np.isfinite(row["loss"])
    # A second run of the stage finds it in the ledger.
    monkeypatch.setattr(train_stage, "execute_run", None)
    assert stage("train", tmp_path) == 0


@pytest.mark.slow
def test_a_kept_network_of_torchvision_predicts_as_in_its_run(tmp_path: Path) -> None:
    data = _write(tmp_path, "mobilenet_v3_small")
    assert stage("train", tmp_path) == 0
    network = load_trained(data.trained_weights("tiny"))
    assert network.network == "torchvision/mobilenet_v3_small"
    images, labels = bright_images(22, _SIDE, seed=1)
    right = [NAMES[label] == name for label, name in zip(labels, network.predict(images), strict=True)]
    assert right == np.load(data.correct("tiny"))[0].tolist()


@pytest.mark.parametrize(("network", "says"), [("vgg61", "vgg16"), ("alexnet", "63 pixels")])
def test_a_stage_refuses_it_before_the_first_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], network: str, says: str
) -> None:
    _write(tmp_path, network)
    assert stage("train", tmp_path) == 2
    error = printed_error(capsys.readouterr().err)
    assert key_within(error, tmp_path / "params.yaml") == "studies.tiny.models"
    assert says in str(error)
