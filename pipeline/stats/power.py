"""How many seeds a comparison needs."""

from functools import cache

import numpy as np
from scipy import stats

from pipeline.stats.sign_flip import pairs_needed, sign_flip_test
from pipeline.stats.student import student_mean

SIMULATED_PAIRS = 12
"""Beyond so many pairs both tests together find hardly less than the t test alone: .5 points of 80 %."""

_STUDIES = 10_000


def paired_t_power(n: int, *, spread: float, difference: float, alpha: float) -> float:
    """Chance that the two-sided paired t test of n pairs finds a true difference.

    Noncentral t (Cohen 1988, Statistical Power Analysis, section 2.2): exact for independent normal differences.

    Args:
        n: pairs, 2 or more.
        spread: standard deviation of the differences, above 0, in the unit of `difference`. Two arms of standard
            deviation s whose runs correlate by r have differences of spread s sqrt(2 (1 - r)).
        difference: true mean difference; its sign does not matter.
        alpha: level of the test, in (0, 1).

    Raises:
        ValueError: a value out of range.
    """
    if n < 2 or not spread > 0 or not 0 < alpha < 1:
        raise ValueError(f"expected n >= 2, spread > 0 and alpha in (0, 1), got {n}, {spread} and {alpha}")
    bound = stats.t.isf(alpha / 2, n - 1)
    shift = abs(difference) / spread * n**0.5
    # Each tail as an upper one: the lower is NaN in SciPy where it is next to nothing.
    return float(stats.nct.sf(bound, n - 1, shift) + stats.nct.sf(bound, n - 1, -shift))


def spread_interval(spread: float, n: int, confidence: float) -> tuple[float, float]:
    """Where the standard deviation lies that n normal values with the standard deviation `spread` come from.

    (n - 1) spread^2 / sigma^2 is distributed as chi-square with n - 1 degrees of freedom: of 4 values, sigma lies
    between .57 and 3.73 times theirs.

    Args:
        n: 2 or more.
        confidence: of the interval, in (0, 1).
    """
    tail = (1 - confidence) / 2
    low, high = (spread * float(((n - 1) / stats.chi2.ppf(at, n - 1)) ** 0.5) for at in (1 - tail, tail))
    return low, high


def required_seeds(spread: float, difference: float, alpha: float, power: float) -> int:
    """The least number of paired seeds with which the t test finds `difference` with the chance `power`.

    `spread` comes from a pilot, whose own uncertainty is not in the answer (see `spread_interval`). A verdict needs the
    sign-flip test besides: see `seeds_for_both_tests`.

    Runs of standard deviation .18 points whose arms do not correlate have differences of spread .255 points; alpha
    .05 and power .8 then take 8 seeds for .3 points and 15 for .2. The normal approximation for two independent
    samples, 2 (1.960 + .842)^2 (.18 / .3)^2, says 6 and 13, too few because it takes the spread as known. Were .18
    the spread of the differences themselves, 6 and 9 would do.

    Args:
        spread, difference, alpha: as `paired_t_power`; the difference is not 0.
        power: in (alpha, 1).

    Raises:
        ValueError: a value out of range.
    """
    if difference == 0 or not alpha < power < 1:
        raise ValueError(f"expected a difference and a power in (alpha, 1), got {difference} and {power}")

    def enough(n: int) -> bool:
        return paired_t_power(n, spread=spread, difference=difference, alpha=alpha) >= power

    high = 2
    while not enough(high):
        high *= 2
    low = high // 2  # too few, or 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def both_tests_power(n: int, *, spread: float, difference: float, alpha: float) -> float:
    """Chance that the t test and the exact sign-flip test of n pairs both find a true difference.

    The share of 10,000 simulated samples of normal differences, the same ones at every call: a standard deviation of
    .4 points at 80 %. At n = 6 all signs must be alike, which costs a sixth of the t test's power; at 12, .5 points.

    Args:
        n: pairs, 2 to SIMULATED_PAIRS.
        spread, difference, alpha: as `paired_t_power`.
    """
    assert 2 <= n <= SIMULATED_PAIRS, n
    return _both_find(n, abs(difference) / spread, alpha)


@cache
def _both_find(n: int, shift: float, alpha: float) -> float:
    samples = np.random.default_rng(0).standard_normal((_STUDIES, n)) + shift
    by_t = student_mean(samples).p_difference() <= alpha
    # Samples that the t test passes over need no sign patterns, of which there are many.
    by_signs = sign_flip_test(samples[by_t]) <= alpha
    return float(by_signs.sum() / _STUDIES)


def seeds_for_both_tests(spread: float, difference: float, alpha: float, power: float) -> int:
    """The least number of paired seeds with which both tests of a verdict find `difference` with the chance `power`.

    Beyond SIMULATED_PAIRS the t test decides. Arguments and errors as `required_seeds`.
    """
    n = max(required_seeds(spread, difference, alpha, power), pairs_needed(alpha))
    while n <= SIMULATED_PAIRS and both_tests_power(n, spread=spread, difference=difference, alpha=alpha) < power:
        n += 1
    return n
