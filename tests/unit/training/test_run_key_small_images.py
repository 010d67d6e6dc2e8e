"""ResNets on small images on CPUs have a number of their own in the key of a run, as their bits changed alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.commands.runs import _job_here
from pipeline.models import build_network, small_maps
from pipeline.training import run_key as module
from pipeline.training.canonical_runs import canonical_jobs
from pipeline.training.run_key import RunKey, matches_current_code, run_key, small_images_code
from pipeline.training.settings import TrainSettings, recorded_settings
from tests.fixtures.slow import quick_first
from tests.fixtures.training import TINY

MEMBERS = np.arange(20) % 3 > 0
RESNET = replace(TINY, network="resnet18", stem="imagenet", batch_size=8, bn_group=8)


def key_of(settings: TrainSettings, device: str = "cpu") -> RunKey:
    return run_key(settings, MEMBERS, data_digest="d", device=torch.device(device), threads=1)


def _on(size: int, settings: TrainSettings = RESNET) -> TrainSettings:
    return replace(settings, format=replace(settings.format, image_size=size, crop_size=size))


@pytest.mark.parametrize(("stem", "limit"), [("imagenet", 16), ("cifar", 4)])
def test_a_change_for_small_images_is_part_of_their_keys_alone(
    monkeypatch: pytest.MonkeyPatch, stem: Any, limit: int
) -> None:
    """Only there have ResNets layers of 64 or 128 channels on maps of 2x2. GPUs take more images to use products."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    small, large = (_on(size, replace(RESNET, stem=stem)) for size in (limit, limit + 1))
    others = [(large, "cpu"), (small, "cuda"), (_on(limit, replace(TINY, network="resnet9")), "cpu")]
    before = key_of(small), [key_of(*other) for other in others]
    monkeypatch.setattr(module, "SMALL_IMAGES_CODE", 0)
    assert key_of(small).fingerprint != before[0].fingerprint
    assert [key_of(*other) for other in others] == before[1]


@pytest.mark.parametrize("network", quick_first(1, ["resnet18", "resnet50"]))
@pytest.mark.parametrize(("stem", "limit"), [("imagenet", 16), ("cifar", 4)])
@torch.inference_mode()
def test_small_images_are_those_whose_bits_few_channels_decide(network: str, stem: Any, limit: int) -> None:
    """From one pixel more on, every choice of products is by the number of images alone."""
    model = build_network(network, 3, stem=stem, seed=0).eval()
    with patch.object(small_maps, "_SMALLEST_WORK", {}):
        any_channels = build_network(network, 3, stem=stem, seed=0).eval()

    def products(model: nn.Module, size: int, batch: int) -> list[tuple[int, ...]]:
        with patch.object(small_maps, "_convolve", wraps=small_maps._convolve) as convolve:
            model(torch.zeros(batch, 3, size, size))
        return [(*x.shape, *weight.shape) for (x, weight, _), _ in convolve.call_args_list]

    for batch in (1, 2, 7, 8, 10):
        assert products(model, limit + 1, batch) == products(any_channels, limit + 1, batch)
    assert products(model, limit, 10) != products(any_channels, limit, 10)


def test_keys_without_the_number_are_of_this_code_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    others = [key_of(_on(16), "cuda"), key_of(_on(17)), key_of(_on(16, replace(TINY, network="resnet9")))]
    for key in others:
        assert "small_images_code" not in key.job
        assert matches_current_code(key)
        assert not matches_current_code(replace(key, job={**key.job, "small_images_code": 1}))


def test_an_imported_run_has_the_number_of_this_kind_of_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    keys = {kind: key_of(_on(16), kind) for kind in ("cpu", "cuda")}
    for source in keys.values():
        for kind, key in keys.items():
            assert _job_here(source, torch.device(kind), None) == key.job


def test_canonical_runs_of_small_images_have_the_number() -> None:
    """A new number gives them new names, so that code which changes these bits alone stays in its family."""
    small = {name for name, job in canonical_jobs().items() if small_images_code(recorded_settings(job), on_cpu=True)}
    assert small
    assert all(name.endswith(f", code {module.SMALL_IMAGES_CODE}") for name in small)


@pytest.mark.parametrize("changes", [
    {"small_images_code": 0}, {"small_images_code": None}, {"settings": 3}, {"settings": {"format": []}},
    {"settings": {}}, {"code": "another"},
])  # fmt: skip
def test_a_run_of_other_code_is_known_by_its_key(changes: Mapping[str, Any]) -> None:
    """Runs before the number had none. A file of another machine may hold anything."""
    key = key_of(_on(16))
    assert matches_current_code(key)
    assert not matches_current_code(replace(key, job={**key.job, **changes}))


def test_another_rule_for_a_form_needs_another_number() -> None:
    """The canonical runs have at most 16 images in a pass and are of CPUs: they do not see every change of the rule."""
    rule = (small_maps._SMALLEST_BATCH, small_maps._SMALLEST_WORK, small_maps._SMALLEST_GPU_BATCH)
    numbers = (module.SMALL_IMAGES_CODE, module._GPU_CODE)
    assert (rule, numbers) == (
        (
            {(1, 1, 1): 8, (1, 1, 2): 8, (2, 3, 1): 8},
            {(1, 1, 1): 2**20, (1, 1, 2): 2**18, (2, 1, 2): 2**18, (2, 3, 1): 2**19, (2, 3, 2): 2**18},
            256,
        ),
        (1, 1),
    ), "a run of another rule may have other bits: raise the number of the kind of device, then change this test"
