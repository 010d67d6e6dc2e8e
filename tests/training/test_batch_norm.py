"""Recomputed statistics against means and variances by hand."""

from typing import cast

import numpy as np
import torch
from made_up_training import TINY, bright_images
from torch import nn

from pipeline.batching import worker_slices
from pipeline.datasets.resident import ResidentImages
from pipeline.models import build
from pipeline.training.batch_norm import recompute_statistics
from pipeline.training.loop import load_images

_PARTS = worker_slices(10, 3)
_BATCHES = [(np.arange(start, start + 10), np.full(10, epoch)) for start, epoch in ((0, 0), (10, 0), (5, 1))]


def _images() -> ResidentImages:
    return load_images(bright_images(20)[0], TINY, training=True, device=torch.device("cpu"))


def _groups() -> list[torch.Tensor]:
    """All groups of all batches, (n, 3, side, side) float64 each."""
    images = _images()
    return [images.training_batch(ids[part], epochs[part]).double() for ids, epochs in _BATCHES for part in _PARTS]


def test_statistics_are_means_over_groups() -> None:
    layer = nn.BatchNorm2d(3)
    recompute_statistics(nn.Sequential(layer), _images(), _BATCHES, _PARTS)
    means = torch.stack([group.mean((0, 2, 3)) for group in _groups()])
    # Like torch's own running variance, with the unbiased one of each group.
    variances = torch.stack([group.transpose(0, 1).flatten(1).var(1) for group in _groups()])
    torch.testing.assert_close(layer.running_mean, means.mean(0).float())
    torch.testing.assert_close(layer.running_var, variances.mean(0).float())
    assert int(cast("torch.Tensor", layer.num_batches_tracked)) == len(_BATCHES) * len(_PARTS)


def test_statistics_of_before_are_forgotten() -> None:
    fresh, used = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    for _ in range(4):
        used(torch.randn(6, 3, 2, 2, generator=torch.Generator().manual_seed(0)) + 100)
    for layer in (fresh, used):
        recompute_statistics(nn.Sequential(layer), _images(), _BATCHES, _PARTS)
    assert fresh.state_dict().keys() == used.state_dict().keys()
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, used.state_dict()[name]), name


def test_deeper_layers_see_what_training_showed_them() -> None:
    """The first layer normalises by the group's own statistics, so the second sees mean 0 and variance 1."""
    layers = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    recompute_statistics(nn.Sequential(*layers), _images(), _BATCHES, _PARTS)
    torch.testing.assert_close(layers[1].running_mean, torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(layers[1].running_var, torch.ones(3), atol=1e-2, rtol=0)


def test_momentum_and_weights_stay() -> None:
    model = build("resnet18", 4, stem="imagenet", seed=0)
    layers = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    layers[0].momentum, layers[1].momentum = 0.3, None
    before = [parameter.clone() for parameter in model.parameters()]
    recompute_statistics(model, _images(), _BATCHES, _PARTS)
    assert [layer.momentum for layer in layers] == [0.3, None, *[0.1] * (len(layers) - 2)]
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_network_without_batch_norm_has_nothing_to_recompute() -> None:
    class Untouched(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            raise AssertionError("a forward pass for nothing")

    recompute_statistics(Untouched(), _images(), _BATCHES, _PARTS)
