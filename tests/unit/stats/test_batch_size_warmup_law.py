"""The best warm-up of each batch size, and its growth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.stats.batch_size import warmup_law

WARMUPS = [0.0, 1.0, 2.0, 4.0, 8.0]
BATCHES = [128, 256, 512]


def _peaked(best: NDArray[np.int64]) -> NDArray[np.float64]:
    """Top-1 (warm-ups, batch sizes, seeds) that is highest at `best` (batch sizes, seeds), indices of warm-ups."""
    distance = np.abs(np.arange(len(WARMUPS))[:, None, None] - best)
    return np.asarray(0.9 - 0.01 * distance)


@pytest.mark.parametrize(("best", "slope"), [([1, 2, 3], 1.0), ([2, 2, 2], 0.0), ([3, 2, 1], -1.0)])
def test_a_planted_law_is_found(best: list[int], slope: float) -> None:
    law = warmup_law(_peaked(np.tile(best, (4, 1)).T), WARMUPS, BATCHES, 0.95)
    assert [row.of_means for row in law.best] == [WARMUPS[index] for index in best]
    assert law.slope is not None
    assert law.slope.n == 4
    assert law.slope.mean == pytest.approx(slope)
    assert law.slope.sd == pytest.approx(0)


@given(st.lists(st.tuples(*[st.integers(1, 4)] * 3), min_size=2, max_size=6))
def test_each_seed_counts_once_with_a_line_of_its_own(best: list[tuple[int, ...]]) -> None:
    indices = np.array(best).T
    law = warmup_law(_peaked(indices), WARMUPS, BATCHES, 0.95)
    assert law.slope is not None
    # Batch sizes double: the slope through three points is half the difference of the outer ones' octaves.
    octaves = indices[2] - indices[0]
    assert law.slope.mean == pytest.approx(np.mean(octaves / 2))
    for row, of_seeds in zip(law.best, np.array(WARMUPS)[indices], strict=True):
        assert row.by_seed.mean == pytest.approx(of_seeds.mean())
        assert row.by_seed.n == len(best)


def test_no_logarithm_of_no_warm_up_and_no_line_through_one_batch() -> None:
    assert warmup_law(_peaked(np.array([[1, 1], [2, 2], [0, 3]])), WARMUPS, BATCHES, 0.95).slope is None
    of_one = warmup_law(_peaked(np.array([[1, 1]])), WARMUPS, BATCHES[:1], 0.95)
    assert of_one.slope is None
    assert of_one.per_doubling is None


def test_growth_by_doubling_is_known_where_no_warm_up_is_best() -> None:
    """Seeds whose best grow from 0 to 2 and from 2 to 8 epochs over two doublings."""
    grows = warmup_law(_peaked(np.array([[0, 2], [1, 3], [2, 4]])), WARMUPS, BATCHES, 0.95).per_doubling
    assert grows is not None
    assert grows.n == 2
    assert grows.mean == pytest.approx((1.0 + 3.0) / 2)
    assert grows.low is not None


def test_unfinished_run_is_never_best_and_end_of_grid_is_reported() -> None:
    top1 = _peaked(np.array([[2, 2], [2, 2], [4, 4]]))
    top1[2, 0, 0] = np.nan
    law = warmup_law(top1, WARMUPS, BATCHES, 0.95)
    assert law.best[0].of_means != WARMUPS[2]
    assert law.best[0].by_seed.mean == (WARMUPS[1] + WARMUPS[2]) / 2
    assert [row.at_end for row in law.best] == [False, False, True]


def test_of_two_alike_the_shorter_is_best() -> None:
    law = warmup_law(np.full((5, 3, 2), 0.5), WARMUPS, BATCHES, 0.95)
    assert {row.of_means for row in law.best} == {0.0}


def test_seeds_that_agree_on_the_grid_have_no_interval_and_no_dust() -> None:
    law = warmup_law(_peaked(np.full((3, 4), 4)), WARMUPS, [100, 300, 700], 0.95)
    assert law.slope is not None
    assert (str(law.slope.mean), law.slope.low, law.slope.high, law.slope.n) == ("0.0", None, None, 4)
    assert {(row.by_seed.low, row.by_seed.high, row.seeds_at_end) for row in law.best} == {(None, None, 4)}
    differing = warmup_law(_peaked(np.array([[1, 2], [2, 3], [3, 4]])), WARMUPS, BATCHES, 0.95)
    assert [row.seeds_at_end for row in differing.best] == [0, 0, 1]
    assert differing.best[0].by_seed.low is not None
