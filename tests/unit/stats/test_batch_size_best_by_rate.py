"""The best batch size of each learning rate."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.stats.batch_size import best_by_rate
from pipeline.stats.runs import Run
from tests.fixtures.runs import made_run

SIZES = (32, 64, 128, 256, 512)
RATES = (0.05, 0.1, 0.2)


def _peaked(best: Sequence[Sequence[int]], rates: Sequence[float] = RATES) -> list[Run]:
    """Runs of the full arm whose top-1 is highest at `best` (rates, seeds), indices of sizes."""
    return [
        made_run("full", seed, 0.9 - 0.01 * abs(position - peak), size, rate)
        for rate, of_rate in zip(rates, best, strict=True)
        for seed, peak in enumerate(of_rate)
        for position, size in enumerate(SIZES)
    ]


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=2, max_size=5))
def test_each_rate_has_each_seeds_best_and_their_geometric_mean(best: list[tuple[int, int, int]]) -> None:
    found = best_by_rate(_peaked(best, [0.1 * (rate + 1) for rate in range(len(best))]), 0.95)
    assert [row.of_seeds for row in found] == [[SIZES[peak] for peak in of_rate] for of_rate in best]
    for row, of_rate in zip(found, best, strict=True):
        assert np.log2(row.by_seed.mean) == pytest.approx(np.mean(of_rate) + 5)
        assert row.seeds_at_end == sum(peak in (0, 4) for peak in of_rate)
        assert row.setting.batch_size == row.of_means
        if row.by_seed.low is None or row.by_seed.high is None:
            assert len(set(of_rate)) == 1
        else:
            assert row.by_seed.low * row.by_seed.high == pytest.approx(row.by_seed.mean**2)


def test_both_ends_of_the_sizes_are_ends() -> None:
    found = best_by_rate(_peaked([(0, 0), (2, 2), (4, 4)]), 0.95)
    assert [(row.of_means, row.at_end) for row in found] == [(32, True), (128, False), (512, True)]


def test_diverged_sizes_are_never_best_and_skipped_ones_not_tried() -> None:
    runs = _peaked([(3, 3), (2, 2), (2, 2)])
    diverged = [
        replace(run, top1=None, status="diverged")
        if (run.setting.batch_size, run.setting.learning_rate) == (512, 0.05)
        else run
        for run in runs
    ]
    assert not best_by_rate(diverged, 0.95)[0].at_end
    skipped = [replace(run, status="skipped") if run.top1 is None else run for run in diverged]
    first = best_by_rate(skipped, 0.95)[0]
    assert (first.batch_sizes, first.at_end) == ([32, 64, 128, 256], True)


def test_a_size_that_one_seed_skipped_is_left_out_for_all_seeds() -> None:
    runs = [
        replace(run, top1=None, status="skipped") if (run.setting.batch_size, run.seed) == (512, 0) else run
        for run in _peaked([(4, 4), (2, 2), (2, 2)])
    ]
    first = best_by_rate(runs, 0.95)[0]
    assert (first.batch_sizes, first.of_seeds) == ([32, 64, 128, 256], [256, 256])


def test_a_rate_at_which_a_seed_finished_nothing_is_left_out() -> None:
    runs = [
        replace(run, top1=None, status="diverged") if run.seed == 1 and run.setting.learning_rate == 0.2 else run
        for run in _peaked([(1, 1), (2, 2), (3, 3)])
    ]
    assert [row.setting.learning_rate for row in best_by_rate(runs, 0.95)] == [0.05, 0.1]


@pytest.mark.parametrize("runs", [_peaked([(1, 2)], [0.1]), [made_run("full", 0, 0.9, 32, rate) for rate in RATES]])
def test_one_rate_or_one_size_tells_nothing(runs: list[Run]) -> None:
    assert best_by_rate(runs, 0.95) == []


def test_arms_keep_their_order_and_several_draws_are_left_out() -> None:
    runs = _peaked([(1,), (2,), (3,)])
    others = [replace(run, arm="filtered") for run in runs]
    found = best_by_rate([*runs, *others], 0.95)
    assert [row.arm for row in found] == ["full"] * 3 + ["filtered"] * 3
    drawn = [replace(run, filter_network="resnet18-r1") for run in others]
    assert {row.arm for row in best_by_rate([*runs, *others, *drawn], 0.95)} == {"full"}
