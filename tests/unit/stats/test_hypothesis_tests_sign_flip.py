from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from pipeline.stats import hypothesis_tests
from pipeline.stats.hypothesis_tests import pairs_needed, sign_flip_test, smallest_p

# Accuracies over 1,000 images, so that sums tie.
samples = hnp.arrays(np.int64, st.integers(1, 8), elements=st.integers(-20, 20))


# Sums that cancel but for their rounding.
@example(np.array([-13, -15, 13, 15]))
@given(samples)
def test_p_is_the_share_of_sign_patterns_at_least_as_extreme(sample: np.ndarray) -> None:
    """In whole images, where nothing is rounded."""
    patterns = product([-1, 1], repeat=len(sample))
    as_far = [abs(sample @ np.array(signs)) >= abs(sample.sum()) for signs in patterns]
    assert sign_flip_test(sample / 1000) == pytest.approx(np.mean(as_far))


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_p_is_that_of_scipys_permutation_test(n: int) -> None:
    sample = np.random.default_rng(n).normal(0.5, 1, n)
    expected = stats.permutation_test((sample,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert sign_flip_test(sample) == pytest.approx(expected.pvalue)


@pytest.mark.parametrize("n", [1, 4, 5, 10, 16, 17, 20])
def test_p_is_least_where_all_signs_agree(n: int) -> None:
    assert sign_flip_test(np.arange(1, n + 1) / 1000) == pytest.approx(smallest_p(n))


def test_the_least_p_by_hand() -> None:
    assert [smallest_p(n) for n in (4, 5, 10)] == [0.125, 0.0625, 2 / 1024]


def test_random_flips_agree_with_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = np.random.default_rng(0).normal(0.4, 1, 12)
    exact = float(sign_flip_test(sample))
    monkeypatch.setattr(hypothesis_tests, "ENUMERATED_FLIPS", 11)
    # Binomial spread of 65,535 flips.
    assert abs(float(sign_flip_test(sample, seed=1)) - exact) < 4 * (exact * (1 - exact) / 65535) ** 0.5
    assert sign_flip_test(sample, seed=1) == sign_flip_test(sample, seed=1)


def test_many_samples_at_once_are_each_on_their_own() -> None:
    values = np.random.default_rng(0).normal(size=(3, 2, 6))
    assert sign_flip_test(values)[2, 1] == pytest.approx(sign_flip_test(values[2, 1]))


def test_no_difference_at_all_is_no_evidence() -> None:
    assert sign_flip_test([0.0, 0.0, 0.0]) == 1


@given(st.floats(1e-4, 0.5), st.integers(1, 20))
def test_pairs_needed_is_the_least_number_that_reaches_alpha(alpha: float, comparisons: int) -> None:
    n = pairs_needed(alpha, comparisons)
    assert comparisons * 2.0 ** (1 - n) <= alpha * (1 + 1e-9)
    assert n == 1 or comparisons * 2.0 ** (2 - n) > alpha * (1 - 1e-9)


def test_pairs_needed_by_hand() -> None:
    assert (pairs_needed(0.05), pairs_needed(0.05, 4), pairs_needed(0.0625)) == (6, 8, 5)
