import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.stats.power import paired_t_power, required_seeds
from pipeline.stats.student import student_mean

# Spreads and differences in percentage points: any unit will do.
RUN_SPREAD = 0.18
PAIR_SPREAD = RUN_SPREAD * 2**0.5


@pytest.mark.parametrize(("n", "difference"), [(3, 0.4), (5, 0.3), (10, 0.2)])
def test_power_is_the_share_of_simulated_studies_that_find_the_difference(n: int, difference: float) -> None:
    rng = np.random.default_rng(n)
    found = student_mean(rng.normal(difference, PAIR_SPREAD, (20_000, n))).p_difference() <= 0.05
    power = paired_t_power(n, spread=PAIR_SPREAD, difference=difference, alpha=0.05)
    assert found.mean() == pytest.approx(power, abs=4 * (power * (1 - power) / 20_000) ** 0.5)


def test_power_without_a_difference_is_alpha() -> None:
    assert paired_t_power(4, spread=1, difference=0, alpha=0.03) == pytest.approx(0.03)


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


@pytest.mark.parametrize(
    "wrong", [{"spread": 0.0}, {"difference": 0.0}, {"alpha": 1.0}, {"power": 0.05}, {"power": 1.0}]
)
def test_what_no_number_of_seeds_can_do_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        required_seeds(**({"spread": 1.0, "difference": 1.0, "alpha": 0.05, "power": 0.8} | wrong))
