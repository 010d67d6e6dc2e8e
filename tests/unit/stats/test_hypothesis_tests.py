"""Sign-flip and permutation tests, Holm's adjustment, and power."""

import tracemalloc
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from pipeline.stats import hypothesis_tests
from pipeline.stats.estimates import student_mean
from pipeline.stats.hypothesis_tests import (
    both_tests_power,
    holm,
    paired_t_power,
    pairs_needed,
    required_seeds,
    seeds_for_both_tests,
    sign_flip_test,
    smallest_p,
    spread_interval,
    trend_test,
)

p_values = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def _rejected(given: list[float], alpha: float) -> set[int]:
    """Holm's procedure as he wrote it: from the smallest p on, until one is not below its bound."""
    found = set()
    for k, i in enumerate(sorted(range(len(given)), key=given.__getitem__)):
        if given[i] > alpha / (len(given) - k):
            break
        found.add(i)
    return found


@given(p_values, st.floats(0.001, 0.5))
def test_adjusted_values_reject_what_the_stepwise_form_rejects(given: list[float], alpha: float) -> None:
    adjusted = holm(given)
    if np.abs(adjusted - alpha).min() > 1e-9:
        assert set(np.flatnonzero(adjusted <= alpha)) == _rejected(given, alpha)


@given(p_values)
def test_adjusted_values_keep_order_between_p_and_bonferronis(given: list[float]) -> None:
    p, adjusted = np.array(given), holm(given)
    assert (adjusted >= p).all()
    assert (adjusted <= np.minimum(len(p) * p, 1) + 1e-12).all()
    assert (np.diff(adjusted[np.argsort(p)]) >= 0).all()


def test_by_hand_and_families_side_by_side() -> None:
    families = [[0.01, 0.04, 0.03], [0.9, 0.01, 0.5]]
    assert holm(families) == pytest.approx(np.array([[0.03, 0.06, 0.06], [1.0, 0.03, 1.0]]))


def test_no_test_stays_none() -> None:
    assert holm([]).shape == (0,)


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


# Spreads and differences in percentage points: any unit will do.
RUN_SPREAD = 0.18
PAIR_SPREAD = RUN_SPREAD * 2**0.5


@pytest.mark.parametrize(("n", "difference"), [(3, 0.4), (5, 0.3), (10, 0.2)])
def test_power_is_the_share_of_simulated_studies_with_a_finding(n: int, difference: float) -> None:
    rng = np.random.default_rng(n)
    found = student_mean(rng.normal(difference, PAIR_SPREAD, (20_000, n))).p_difference() <= 0.05
    power = paired_t_power(n, spread=PAIR_SPREAD, difference=difference, alpha=0.05)
    assert found.mean() == pytest.approx(power, abs=4 * (power * (1 - power) / 20_000) ** 0.5)


def test_power_without_a_difference_is_alpha() -> None:
    assert paired_t_power(4, spread=1, difference=0, alpha=0.03) == pytest.approx(0.03)


@pytest.mark.parametrize("wrong", [{"n": 1}, {"spread": 0.0}, {"alpha": 0.0}, {"alpha": 1.0}])
def test_power_without_meaning_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        paired_t_power(**({"n": 6, "spread": 1.0, "difference": 1.0, "alpha": 0.05} | wrong))


def test_seeds_for_runs_of_the_pilots_spread() -> None:
    """Two arms that do not correlate: two seeds more than the normal approximation says; and differences of it."""
    assert [required_seeds(PAIR_SPREAD, difference, 0.05, 0.8) for difference in (0.3, 0.2)] == [8, 15]
    normal = [2 * (1.959964 + 0.841621) ** 2 * (RUN_SPREAD / difference) ** 2 for difference in (0.3, 0.2)]
    assert [int(np.ceil(n)) for n in normal] == [6, 13]
    assert [required_seeds(RUN_SPREAD, difference, 0.05, 0.8) for difference in (0.3, 0.2)] == [6, 9]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("wrong", [{"difference": 0.0}, {"difference": np.nan}, {"spread": np.nan}, {"spread": np.inf}])
def test_seeds_without_meaning_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        required_seeds(**({"spread": 1.0, "difference": 1.0, "alpha": 0.05, "power": 0.8} | wrong))


# So far out that SciPy's lower tail is NaN.
@example(1.8125, 0.01, 0.95)
@settings(max_examples=30)
@given(st.floats(0.05, 2), st.sampled_from([0.01, 0.05]), st.sampled_from([0.5, 0.8, 0.95]))
def test_required_seeds_is_the_least_number(difference: float, alpha: float, power: float) -> None:
    n = required_seeds(1, -difference, alpha, power)
    assert paired_t_power(n, spread=1, difference=difference, alpha=alpha) >= power
    assert n == 2 or paired_t_power(n - 1, spread=1, difference=difference, alpha=alpha) < power


@pytest.mark.parametrize("spread", [0.18, 0.25, 0.35, 1.0])
def test_both_tests_need_the_stated_seeds_and_not_one_fewer(spread: float) -> None:
    """Of new random studies. At six seeds the sign-flip test finds it only where all signs are alike."""
    needed = seeds_for_both_tests(spread, 0.3, 0.05, 0.8)
    assert needed >= max(6, required_seeds(spread, 0.3, 0.05, 0.8))
    if needed > 12:
        return
    assert _found(needed, spread) > 0.8 - 0.015
    assert needed == 6 or _found(needed - 1, spread) < 0.8 + 0.015


def _found(n: int, spread: float) -> float:
    samples = np.random.default_rng(n).normal(0.3, spread, (10_000, n))
    both = (student_mean(samples).p_difference() <= 0.05) & (sign_flip_test(samples) <= 0.05)
    return float(both.mean())


def test_six_seeds_that_suffice_for_the_t_test_do_not_for_both() -> None:
    spread = 0.3 / 1.44
    assert paired_t_power(6, spread=spread, difference=0.3, alpha=0.05) > 0.8
    assert both_tests_power(6, spread=spread, difference=0.3, alpha=0.05) == pytest.approx(0.635, abs=0.02)


@pytest.mark.parametrize(
    "wrong", [{"spread": 0.0}, {"difference": 0.0}, {"alpha": 1.0}, {"power": 0.05}, {"power": 1.0}]
)
def test_what_no_number_of_seeds_can_do_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        required_seeds(**({"spread": 1.0, "difference": 1.0, "alpha": 0.05, "power": 0.8} | wrong))


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 6])
def test_the_interval_of_a_spread_covers_as_often_as_it_says(n: int) -> None:
    found = np.random.default_rng(2).normal(0, 0.3, (2000, n)).std(axis=1, ddof=1)
    held = [low <= 0.3 <= high for low, high in (spread_interval(sd, n, 0.95) for sd in found)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


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


def test_thousands_of_pairs_take_little_memory() -> None:
    differences = np.random.default_rng(0).normal(0.1, 1.0, 1000)
    tracemalloc.start()
    try:
        p = float(sign_flip_test(differences))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20e6
    assert p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=0.2)
