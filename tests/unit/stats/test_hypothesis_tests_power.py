from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.stats.estimates import student_mean
from pipeline.stats.hypothesis_tests import (
    both_tests_power,
    paired_t_power,
    required_seeds,
    seeds_for_both_tests,
    sign_flip_test,
    spread_interval,
)

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


@pytest.mark.parametrize("n", [3, 6])
def test_the_interval_of_a_spread_covers_as_often_as_it_says(n: int) -> None:
    found = np.random.default_rng(2).normal(0, 0.3, (2000, n)).std(axis=1, ddof=1)
    held = [low <= 0.3 <= high for low, high in (spread_interval(sd, n, 0.95) for sd in found)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)
