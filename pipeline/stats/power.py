"""How many seeds a comparison needs."""

from scipy import stats


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


def required_seeds(spread: float, difference: float, alpha: float, power: float) -> int:
    """The least number of paired seeds with which the t test finds `difference` with the chance `power`.

    `spread` comes from a pilot, whose own uncertainty is not in the answer: the standard deviation of 4 pairs may be
    half the true one. The sign-flip test needs `pairs_needed(alpha)` seeds besides.

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
