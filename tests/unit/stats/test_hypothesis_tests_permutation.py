"""The permutation test of a trend."""

import numpy as np
import pytest
from scipy import stats

from pipeline.stats.hypothesis_tests import trend_test


@pytest.mark.parametrize("n", [4, 6])
def test_it_gives_what_scipy_gives(n: int) -> None:
    x, y = np.arange(n) ** 1.5, np.random.default_rng(n).normal(size=n)

    def steepness(order: np.ndarray) -> float:
        return float(order @ (x - x.mean()))

    for found, alternative in zip(trend_test(x, y), ("greater", "less"), strict=True):
        reference = stats.permutation_test((y,), steepness, permutation_type="pairings", alternative=alternative)
        assert found == pytest.approx(reference.pvalue)


def test_orders_at_random_come_close_and_never_to_0() -> None:
    x = np.arange(9)
    assert trend_test(x, x)[0] == pytest.approx(1 / 5040, rel=3)
    assert trend_test(x, x)[0] >= 1 / 5040
    assert trend_test(x, np.random.default_rng(0).normal(size=9))[0] == pytest.approx(
        stats.pearsonr(x, np.random.default_rng(0).normal(size=9), alternative="greater").pvalue, abs=0.05
    )


def test_values_that_are_all_alike_are_no_trend() -> None:
    assert trend_test([1, 2, 3, 4, 5], [0.1] * 5) == (1, 1)
