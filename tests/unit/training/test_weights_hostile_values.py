"""Files of networks with values that no training writes, and devices that this machine lacks."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.config.prepare import PrepareConfig
from pipeline.errors import InputError
from pipeline.models import build_network
from pipeline.training.loaded_networks import LARGEST_IMAGE
from pipeline.training.weights import load_trained, save_trained
from tests.fixtures.training import NAMES, TINY


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "best.pt"
    save_trained(path, build_network("resnet18", len(NAMES), stem="imagenet", seed=0), TINY, NAMES)
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"crop_size": 99},
        {"crop_size": 0},
        {"crop_size": True},
        {"image_size": "16"},
        {"image_size": 16.0},
        {"image_size": 10**6},
        {"mean": None},
        {"mean": (0.5,)},
        {"mean": "abc"},
        {"mean": (0.5, math.nan, 0.5)},
        {"mean": (0.5, "0.5", 0.5)},
        {"mean": (0.5, 10**400, 0.5)},
        {"std": (0.0, 0.0, 0.0)},
        {"std": (0.5, 0.5, -0.5)},
        {"std": (0.5, 0.5, math.inf)},
        {"std": {0: 0.5, 1: 0.5, 2: 0.5}},
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_format_that_no_image_has_is_refused(saved: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    content = torch.load(saved, weights_only=True)
    _check_refused(tmp_path / "w.pt", {**content, "format": {**content["format"], **change}})


@pytest.mark.parametrize("names", [[1, 2, 3, 4], ["a", "b", "c", None], "abcd"], ids=str)
def test_class_names_are_texts(saved: Path, tmp_path: Path, names: object) -> None:
    _check_refused(tmp_path / "w.pt", {**torch.load(saved, weights_only=True), "class_names": names})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_are_finite(saved: Path, tmp_path: Path, value: float) -> None:
    content = torch.load(saved, weights_only=True)
    next(iter(content["state_dict"].values())).view(-1)[3] = value
    _check_refused(tmp_path / "w.pt", content)


def _check_refused(path: Path, content: dict[str, Any]) -> None:
    torch.save(content, path)
    with pytest.raises(InputError) as refused:
        load_trained(path)
    assert str(refused.value).startswith(f"{path}: settings and weights do not fit")


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "xpu"])
def test_a_device_that_is_missing_is_named(saved: Path, device: str) -> None:
    with pytest.raises(InputError, match="give cpu, or cuda where there is a GPU") as refused:
        load_trained(saved, device)
    assert str(refused.value).startswith(f"device: {device} (")


def test_a_device_out_of_memory_is_not_called_missing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch.nn.Module, "to", full)
    with pytest.raises(torch.OutOfMemoryError):
        load_trained(saved)


def test_the_largest_image_is_that_of_prepare() -> None:
    limits = [getattr(item, "le", None) for item in PrepareConfig.model_fields["image_size"].metadata]
    assert LARGEST_IMAGE in limits
