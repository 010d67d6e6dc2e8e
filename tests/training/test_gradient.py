"""The gradient of a global batch: exact in float64, and mutants of it are caught by the same check."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline.batching import rank_slices, worker_slices
from pipeline.datasets.resident import ResidentImages
from pipeline.models import build
from pipeline.training.gradient import accumulate_gradients

N, N_CLASSES = 50, 4
Accumulate = Callable[..., Tensor]


class _Doubles:
    """Images that are random float64 numbers, each epoch's scaled anew."""

    def __init__(self) -> None:
        self._pixels = torch.from_numpy(np.random.default_rng(0).normal(size=(N, 3, 6, 6)))

    def training_batch(self, ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        scale = torch.from_numpy(1.0 + epochs)[:, None, None, None]
        return self._pixels[torch.from_numpy(ids)] * scale


_IMAGES = cast("ResidentImages", _Doubles())
_LABELS = torch.from_numpy(np.random.default_rng(1).integers(0, N_CLASSES, N))


def _without_batch_norm() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, N_CLASSES)
    return nn.Sequential(*layers).double()


def _batch(batch: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, N, batch), rng.integers(0, 2, batch)


def _gradient(model: nn.Module) -> Tensor:
    return torch.cat([cast("Tensor", parameter.grad).flatten() for parameter in model.parameters()])


def _distance(gradient: Tensor, expected: Tensor) -> float:
    """Relative L2."""
    return float((gradient - expected).norm() / expected.norm())


def _plain(
    model: nn.Module, ids: NDArray[np.int64], epochs: NDArray[np.int64], smoothing: float = 0.0
) -> tuple[Tensor, float]:
    """Gradient of the mean loss over the whole batch in one pass, and the sum of the losses."""
    model.zero_grad()
    logits, targets = model(_IMAGES.training_batch(ids, epochs)), _LABELS[torch.from_numpy(ids)]
    loss = F.cross_entropy(logits, targets, label_smoothing=smoothing)
    loss.backward()
    return _gradient(model), float(loss.detach()) * len(ids)


def _error(accumulate: Accumulate, batch: int, parts: Sequence[slice], **options: Any) -> float:
    """Relative L2 distance of an accumulated gradient to the plain one."""
    model = _without_batch_norm()
    ids, epochs = _batch(batch, seed=batch)
    expected, _ = _plain(model, ids, epochs, options.get("label_smoothing", 0.0))
    model.zero_grad()
    accumulate(model, _IMAGES, _LABELS, ids, epochs, parts, **{"ranks": 1, "label_smoothing": 0.0, **options})
    return _distance(_gradient(model), expected)


@settings(max_examples=30)
@given(batch=st.integers(1, 60), workers=st.integers(1, 12), smoothing=st.floats(0, 0.5))
def test_parts_of_any_size_give_the_gradient_of_the_mean(batch: int, workers: int, smoothing: float) -> None:
    parts = worker_slices(batch, workers)
    assert _error(accumulate_gradients, batch, parts, label_smoothing=smoothing) <= 1e-12


def test_very_uneven_parts_give_the_gradient_of_the_mean() -> None:
    assert _error(accumulate_gradients, 20, [slice(0, 1), slice(1, 18), slice(18, 20)]) <= 1e-12


@pytest.mark.parametrize(("batch", "simulated", "ranks"), [(34, 4, 2), (34, 4, 4), (13, 6, 3), (24, 8, 8)])
def test_the_mean_over_ranks_is_the_gradient_of_the_mean(batch: int, simulated: int, ranks: int) -> None:
    """As DistributedDataParallel averages, also where ranks hold unequal numbers of images."""
    model = _without_batch_norm()
    ids, epochs = _batch(batch, seed=0)
    expected, loss = _plain(model, ids, epochs)
    gradients, losses = [], []
    for rank in range(ranks):
        model.zero_grad()
        parts = rank_slices(batch, simulated, rank=rank, ranks=ranks)
        total = accumulate_gradients(model, _IMAGES, _LABELS, ids, epochs, parts, ranks=ranks, label_smoothing=0.0)
        gradients.append(_gradient(model))
        losses.append(float(total))
    assert _distance(torch.stack(gradients).mean(0), expected) <= 1e-12
    assert sum(losses) == pytest.approx(loss, rel=1e-6)


def test_gradients_are_added_to_those_that_are_there() -> None:
    model = _without_batch_norm()
    ids, epochs = _batch(12, seed=0)
    expected, _ = _plain(model, ids, epochs)
    accumulate_gradients(model, _IMAGES, _LABELS, ids, epochs, worker_slices(12, 3), ranks=1, label_smoothing=0.0)
    torch.testing.assert_close(_gradient(model), 2 * expected)


def _mean_of_means(model: nn.Module, images: Any, labels: Tensor, ids: Any, epochs: Any, parts: Any, **_: Any) -> None:
    for part in parts:
        logits = model(images.training_batch(ids[part], epochs[part]))
        (F.cross_entropy(logits, labels[torch.from_numpy(ids[part])]) / len(parts)).backward()


def _last_part_alone(*batch: Any, **options: Any) -> None:
    _EXACT(*batch[:-1], batch[-1][-1:], **options)


def _first_epoch_for_all(*batch: Any, **options: Any) -> None:
    *head, epochs, parts = batch
    _EXACT(*head, 0 * epochs, parts, **options)


_EXACT: Accumulate = accumulate_gradients


@pytest.mark.parametrize("mutant", [_mean_of_means, _last_part_alone, _first_epoch_for_all])
def test_mutants_are_caught(mutant: Accumulate) -> None:
    assert _error(mutant, 34, worker_slices(34, 4)) > 1e-4


def _resnet() -> nn.Module:
    torch.manual_seed(0)
    return build("resnet18", N_CLASSES, stem="cifar", seed=0).double().train()


def _resnet_gradient(parts: Sequence[slice]) -> Tensor:
    model, (ids, epochs) = _resnet(), _batch(24, seed=0)
    accumulate_gradients(model, _IMAGES, _LABELS, ids, epochs, parts, ranks=1, label_smoothing=0.1)
    return _gradient(model)


def test_one_part_of_a_resnet_is_plain_torch() -> None:
    expected, _ = _plain(_resnet(), *_batch(24, seed=0), smoothing=0.1)
    assert _distance(_resnet_gradient([slice(0, 24)]), expected) <= 1e-12


def test_each_part_has_batch_norm_statistics_of_its_own() -> None:
    """Weighted by their sizes, the gradients of the parts alone add up; those of merged groups are far off."""
    parts, (ids, epochs) = [slice(0, 8), slice(8, 24)], _batch(24, seed=0)
    alone = [_plain(_resnet(), ids[part], epochs[part], smoothing=0.1)[0] * len(ids[part]) / 24 for part in parts]
    expected = torch.stack(alone).sum(0)
    assert _distance(_resnet_gradient(parts), expected) <= 1e-12
    assert _distance(_resnet_gradient([slice(0, 24)]), expected) > 0.1
