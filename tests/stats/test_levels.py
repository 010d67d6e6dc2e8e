import numpy as np
import pytest

from pipeline.stats import crossed_difference, mean_estimate
from pipeline.stats.levels import level_estimate, level_mean, level_sign_flip, replicates
from pipeline.stats.sign_flip import sign_flip_test

VALUES = np.random.default_rng(0).normal(0.5, 1, (3, 4))


def test_seeds_are_the_replicates_of_one_draw() -> None:
    one = VALUES[:1]
    assert replicates(one).tolist() == one[0].tolist()
    for shared in (False, True):
        assert level_estimate(one, 0.9, shared_control=shared) == mean_estimate(one[0], 0.9)
        assert level_sign_flip(one, shared_control=shared) == sign_flip_test(one[0])


def test_draws_are_the_replicates_where_there_are_several() -> None:
    means = VALUES.mean(axis=1)
    assert level_estimate(VALUES, 0.9, shared_control=False) == mean_estimate(means, 0.9)
    assert level_sign_flip(VALUES, shared_control=False) == sign_flip_test(means)


def test_draws_and_seeds_both_vary_against_a_control_that_draws_share() -> None:
    assert level_estimate(VALUES, 0.9, shared_control=True) == crossed_difference(VALUES, 0.9)
    found = level_mean(VALUES, shared_control=True).interval(0.9)
    assert found == pytest.approx((crossed_difference(VALUES, 0.9).low, crossed_difference(VALUES, 0.9).high))
    both = [float(sign_flip_test(VALUES.mean(axis=axis))) for axis in (0, 1)]
    assert level_sign_flip(VALUES, shared_control=True) == max(both)


@pytest.mark.parametrize("wrong", [np.zeros((0, 3)), np.zeros(3), np.zeros((1, 2, 3))])
def test_what_is_no_table_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="table"):
        level_estimate(wrong, 0.9, shared_control=False)
