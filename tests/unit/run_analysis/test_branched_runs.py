"""Branches of a run: the same steps before, equally many images after, and the largest batch that is as good."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.run_analysis.branched_runs import Scaling, branch_images, branch_settings, compare_branches
from pipeline.training.settings import TrainSettings
from tests.fixtures.loop import train_bright, weights_of
from tests.fixtures.training import TINY

_BASE = replace(
    TINY, network="small_cnn", batch_size=4, simulated_workers=2, warmup_steps=3, noise_scale_steps=2,
    learning_rate=0.01,
)  # fmt: skip


def _branch(factor: int, *, scaling: Scaling | None = "linear", after: int = 5, images: int = 16) -> TrainSettings:
    return branch_settings(_BASE, factor, after=after, images=images, scaling=scaling)


@given(st.integers(1, 500), st.integers(1, 9), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_images_are_whole_batches_of_every_branch(images: int, batch: int, factors: list[int]) -> None:
    rounded = branch_images(images, batch, factors)
    assert rounded >= images
    assert all(rounded % (batch * factor) == 0 for factor in factors)


@pytest.mark.parametrize(("scaling", "after_it"), [("linear", 4.0), ("sqrt", 2.0), (None, 1.0)])
def test_rates_are_equal_before_the_branch_and_scaled_after_it(scaling: Scaling | None, after_it: float) -> None:
    small, large = _branch(1, scaling=scaling), _branch(4, scaling=scaling)
    for step in range(5):
        assert large.batch_sizes.size_at(step) == 4
        assert large.lr_at(step) == pytest.approx(small.lr_at(step), rel=1e-12)
    assert large.lr_at(5) == pytest.approx(after_it * small.lr_at(5), rel=1e-12)
    assert small.lr_at(5) == pytest.approx(0.01)


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_branches_have_equal_images_and_batch_norm_groups(factor: int) -> None:
    settings = _branch(factor)
    assert settings.batch_sizes.examples(settings.steps) == 5 * 4 + 16
    assert settings.bn_group == 2
    assert (settings.noise_scale_steps is None) == (factor > 1)


def test_the_steps_before_the_branch_are_those_of_the_small_batch() -> None:
    small, large = (
        train_bright(replace(_branch(factor, scaling=None), steps=5, noise_scale_steps=None)) for factor in (1, 4)
    )
    assert torch.equal(weights_of(small), weights_of(large))


def _critical(*excesses: Sequence[float | None], tolerance: float = 0.01) -> tuple[list[bool], int | None]:
    small = [1.0, 2.0, 3.0]
    losses: dict[int, list[float | None]] = {1: [*small]}
    for power, excess in enumerate(excesses, start=1):
        losses[2**power] = [None if one is None else base + one for base, one in zip(small, excess, strict=True)]
    branches, critical = compare_branches(losses, batch_size=32, tolerance=tolerance)
    assert [branch.batch_size for branch in branches] == [32 * 2**power for power in range(len(excesses) + 1)]
    return [branch.within for branch in branches], critical


def test_the_critical_batch_is_the_last_before_the_first_excess() -> None:
    assert _critical([0.0] * 3, [0.02] * 3, [0.0] * 3) == ([True, True, False, True], 64)
    assert _critical([0.02] * 3) == ([True, False], 32)
    assert _critical([0.0] * 3, [-0.5] * 3) == ([True, True, True], None)
    assert _critical([0.0, None, 0.0], [0.0] * 3) == ([True, False, True], 32)


def test_the_excess_is_paired_by_seed() -> None:
    branches, _ = compare_branches({1: [1.0, 2.0, 3.0], 2: [1.1, 2.1, 3.1]}, batch_size=8, tolerance=0.2)
    excess = branches[1].excess
    assert excess is not None
    assert [excess.mean, excess.low, excess.high] == [pytest.approx(0.1)] * 3
