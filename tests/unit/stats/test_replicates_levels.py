import numpy as np
import pytest

from pipeline.stats import crossed_difference, mean_estimate
from pipeline.stats.hypothesis_tests import sign_flip_test
from pipeline.stats.replicates import level_estimate, level_mean, level_sign_flip

VALUES = np.random.default_rng(0).normal(0.5, 1, (3, 4))


def test_seeds_are_the_replicates_of_one_draw() -> None:
    one = VALUES[:1]
    assert level_estimate(one, 0.9) == mean_estimate(one[0], 0.9)
    assert level_sign_flip(one) == sign_flip_test(one[0])


def test_seeds_that_all_draws_share_are_not_independent() -> None:
    """What a seed does to one arm alone is in the difference of every draw: twenty draws do not average it out."""
    by_seed = np.array([-0.01, 0.002, 0.005, 0.011])
    table = by_seed + 1e-4 * np.random.default_rng(1).normal(size=(20, 4))
    assert level_mean(table).p_difference() > 0.5
    assert level_mean(table).error == pytest.approx(by_seed.std(ddof=1) / 2, rel=0.1)


def test_draws_and_seeds_are_crossed() -> None:
    assert level_estimate(VALUES, 0.9) == crossed_difference(VALUES, 0.9)
    found = level_mean(VALUES).interval(0.9)
    assert found == pytest.approx((crossed_difference(VALUES, 0.9).low, crossed_difference(VALUES, 0.9).high))
    both = [float(sign_flip_test(VALUES.mean(axis=axis))) for axis in (0, 1)]
    assert level_sign_flip(VALUES) == max(both)


@pytest.mark.parametrize("wrong", [np.zeros((0, 3)), np.zeros(3), np.zeros((1, 2, 3))])
def test_what_is_no_table_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="table"):
        level_estimate(wrong, 0.9)
