"""Compare the statistics with statsmodels, which only tests use."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import proportion_confint
from statsmodels.stats.weightstats import ttost_paired

from pipeline.stats import wilson_interval
from pipeline.stats.estimates import student_mean
from pipeline.stats.hypothesis_tests import holm, paired_t_power, required_seeds


@given(hnp.arrays(np.float64, st.integers(1, 12), elements=st.floats(0, 1)))
def test_holm_matches_multipletests(p_values: np.ndarray) -> None:
    with mock.patch("gc.collect"):  # which multipletests calls: half a second among thousands of tests
        _, expected, *_ = multipletests(p_values, method="holm")
    np.testing.assert_allclose(holm(p_values), expected, rtol=1e-12)


@pytest.mark.parametrize("n", [2, 3, 6, 15])
@pytest.mark.parametrize("effect", [0.0, 0.3, 1.2])
@pytest.mark.parametrize("alpha", [0.01, 0.05])
def test_paired_t_power_matches_t_test_power(n: int, effect: float, alpha: float) -> None:
    expected = TTestPower().power(effect_size=effect, nobs=n, alpha=alpha, alternative="two-sided")
    assert paired_t_power(n, spread=0.25, difference=-0.25 * effect, alpha=alpha) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("effect", "power"), [(0.8, 0.8), (1.2, 0.9), (2.0, 0.8)])
def test_required_seeds_matches_solve_power(effect: float, power: float) -> None:
    expected = TTestPower().solve_power(effect_size=effect, alpha=0.05, power=power, alternative="two-sided")
    assert required_seeds(1.0, effect, 0.05, power) == int(np.ceil(expected))


@pytest.mark.parametrize("shift", [0.0, 0.002, -0.004])
@pytest.mark.parametrize("n", [2, 5, 12])
def test_p_equivalence_matches_ttost_paired(n: int, shift: float) -> None:
    rng = np.random.default_rng(n)
    control = rng.normal(0.9, 0.002, n)
    treated = control + shift + rng.normal(0, 0.001, n)
    expected, *_ = ttost_paired(treated, control, -0.003, 0.003)
    assert student_mean(treated - control).p_equivalence(0.003) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("successes", "n"), [(0, 7), (8, 10), (9_431, 10_000), (10_000, 10_000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_wilson_interval_matches_proportion_confint(successes: int, n: int, confidence: float) -> None:
    expected = proportion_confint(successes, n, alpha=1 - confidence, method="wilson")
    assert wilson_interval(successes, n, confidence) == pytest.approx(expected, abs=1e-12)
