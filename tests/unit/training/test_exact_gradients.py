"""Exact gradients: near plain sums, equal in every order, and computed again beyond their grids."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipeline.batching import BatchSlice, GlobalBatch, RankBatch, worker_slices
from pipeline.distributed import CommConfig, Grids, World
from pipeline.models import build_network
from pipeline.training.dynamics import ConfidenceTracker
from pipeline.training.exact_gradients import ExactGradients
from pipeline.training.gradients import TrainLoss, slice_gradients
from tests.fixtures.training import NAMES, distance, gradient_of, random_train_loss

N, SIZE, WORKERS = 50, 26, 5
_ALONE = World(rank=0, size=1, device=torch.device("cpu"))
_PARTS = worker_slices(SIZE, WORKERS)


def _network(name: str = "resnet18") -> nn.Module:
    return build_network(name, len(NAMES), stem="imagenet", seed=0).train()


def _batch(seed: int = 0) -> GlobalBatch:
    rng = np.random.default_rng(seed)
    return GlobalBatch(sample_ids=rng.permutation(N)[:SIZE], epochs=np.zeros(SIZE, np.int64))


def _strategy(model: nn.Module, grids: Grids | None = None) -> ExactGradients:
    return ExactGradients(model, _ALONE, CommConfig(), simulated_workers=WORKERS, grids=grids)


def _compute(
    exact: ExactGradients, train_loss: TrainLoss, parts: list[BatchSlice], *, loss_scale: float = 1.0
) -> Tensor:
    return exact.compute(train_loss, _batch(), RankBatch(slices=parts, micro_batches=parts), loss_scale=loss_scale)


def _float32_loss() -> TrainLoss:
    return random_train_loss(N, dtype=torch.float32)


def test_gradient_loss_and_noise_are_those_of_plain_sums() -> None:
    train_loss, model = _float32_loss(), _network()
    exact = _strategy(model)
    loss = _compute(exact, train_loss, _PARTS)
    found = gradient_of(model)
    sums = slice_gradients(model, train_loss, _batch(), _PARTS)
    # In float32 every addition of a slice rounds by at most 2**-24 of the sum so far, and a square twice as much.
    rounding = WORKERS * 2.0**-24
    assert distance(found, gradient_of(model)) < rounding
    assert float(loss) == pytest.approx(float(sums.loss), rel=rounding)
    sample = exact.noise_sample()
    assert sample.mean_small_sq_norm == pytest.approx(float(sums.slice_sq_norm), rel=2 * rounding)
    assert sample.big_sq_norm == pytest.approx(float(sums.sq_norm), rel=2 * rounding)
    assert (sample.small_batch, sample.big_batch) == (SIZE / WORKERS, SIZE)


@pytest.mark.slow
def test_the_order_of_the_leaves_changes_no_bit() -> None:
    train_loss, model = _float32_loss(), _network()
    exact = _strategy(model)
    _compute(exact, train_loss, _PARTS)
    expected = gradient_of(model).clone()
    _compute(exact, train_loss, _PARTS[::-1])
    assert torch.equal(gradient_of(model), expected)


@pytest.mark.parametrize("change", [-40, 40])
@pytest.mark.parametrize("outside", [0, 3, -1])
def test_a_gradient_outside_its_grid_is_summed_again_tracked_once(outside: int, change: int) -> None:
    """Of the loss, which is first, or of the first or last parameter."""
    train_loss, model = _float32_loss(), _network("small_cnn")
    exact = _strategy(model)
    _compute(exact, train_loss, _PARTS)
    assert exact.grids is not None
    expected, grids = gradient_of(model).clone(), exact.grids
    exponents = list(grids.exponents)
    exponents[outside] += change
    passes: list[int] = []
    counted = replace(train_loss, confidence_tracker=_Counting(N, passes))
    again = _strategy(model, replace(grids, exponents=tuple(exponents)))
    _compute(again, counted, _PARTS)
    assert torch.equal(gradient_of(model), expected)
    assert again.grids == grids
    assert len(passes) == WORKERS


class _Counting(ConfidenceTracker):
    def __init__(self, n: int, passes: list[int]) -> None:
        super().__init__(n, torch.device("cpu"))
        self._made = passes

    def update(self, sample_ids: Tensor, targets: Tensor, logits: Tensor) -> None:
        self._made.append(len(sample_ids))


def test_a_gradient_that_is_not_finite_is_not_summed_again() -> None:
    train_loss, model = _float32_loss(), _network("small_cnn")
    exact = _strategy(model)
    _compute(exact, train_loss, _PARTS)
    grids = exact.grids
    passes: list[int] = []
    _compute(exact, replace(train_loss, confidence_tracker=_Counting(N, passes)), _PARTS, loss_scale=float("inf"))
    assert not gradient_of(model).isfinite().all()
    assert len(passes) == WORKERS
    assert exact.grids is not None
    assert grids is not None
    assert exact.grids.sum_bits == grids.sum_bits


def test_a_loss_scale_multiplies_the_gradient_alone() -> None:
    train_loss, model = _float32_loss(), _network("small_cnn")
    exact = _strategy(model)
    loss = _compute(exact, train_loss, _PARTS)
    plain, noise = gradient_of(model).clone(), exact.noise_sample()
    scaled = _strategy(model)
    assert torch.equal(_compute(scaled, train_loss, _PARTS, loss_scale=1024.0), loss)
    assert torch.equal(gradient_of(model), 1024 * plain)
    assert scaled.noise_sample().big_sq_norm == pytest.approx(noise.big_sq_norm)
    assert scaled.noise_sample().mean_small_sq_norm == pytest.approx(noise.mean_small_sq_norm)
