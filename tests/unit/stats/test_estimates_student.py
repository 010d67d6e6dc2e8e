import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from pipeline.stats.estimates import crossed_mean, student_mean

samples = hnp.arrays(np.float64, st.integers(2, 12), elements=st.floats(-1, 1, width=16)).filter(
    lambda sample: sample.std() > 1e-3
)


@given(samples)
def test_p_of_a_difference_is_scipys_one_sample_t(sample: np.ndarray) -> None:
    assert student_mean(sample).p_difference() == pytest.approx(stats.ttest_1samp(sample, 0).pvalue)


@given(samples, st.floats(0.01, 1))
def test_p_of_equivalence_is_the_larger_of_scipys_one_sided_tests(sample: np.ndarray, margin: float) -> None:
    above = stats.ttest_1samp(sample, -margin, alternative="greater").pvalue
    below = stats.ttest_1samp(sample, margin, alternative="less").pvalue
    assert student_mean(sample).p_equivalence(margin) == pytest.approx(max(above, below))


@given(samples, st.floats(0.01, 1), st.floats(0.001, 0.4))
def test_equivalence_is_found_if_its_interval_lies_within_margins(
    sample: np.ndarray, margin: float, alpha: float
) -> None:
    found = student_mean(sample)
    low, high = found.interval(1 - 2 * alpha)
    gap = min(low + margin, margin - high)
    if abs(gap) > 1e-9:
        assert (found.p_equivalence(margin) <= alpha) == (gap > 0)


def test_equivalence_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3); margin 4 is 2 sqrt(3) errors away.
    assert student_mean([1, 2, 3]).p_equivalence(4) == pytest.approx(stats.t.sf(2 * 3**0.5, 2))


def test_equal_differences_are_certain() -> None:
    found = student_mean([[0.25, 0.25], [0.0, 0.0]])
    assert found.p_difference().tolist() == [0, 1]
    assert found.p_equivalence(0.3).tolist() == [0, 0]
    assert found.p_equivalence(0.1).tolist() == [1, 0]


def test_many_samples_at_once_are_each_on_their_own() -> None:
    values = np.random.default_rng(0).normal(size=(3, 2, 4, 5))
    for estimator in (student_mean, crossed_mean):
        together = estimator(values).p_difference()
        assert together[1, 0] == pytest.approx(estimator(values[1, 0]).p_difference())
