"""Sign-flip and permutation tests, Holm's correction and power."""

import itertools
import math
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from pipeline.stats.estimates import student_mean

# The sign-flip permutation test of paired differences.


ENUMERATED_FLIPS = 16
"""Up to so many pairs all sign patterns are tried."""

RANDOM_FLIPS: int = 2**ENUMERATED_FLIPS - 1
"""How many random patterns stand for all of them beyond that."""


def sign_flip_test(differences: ArrayLike, *, seed: int = 0) -> NDArray[np.float64]:
    """Two-sided p-values (...) of samples (..., n) of paired differences.

    Fisher's randomisation test for pairs (The Design of Experiments, 1935, section 21): if the arms do not differ,
    every difference could as well have the other sign. p is the share of sign patterns whose mean is at least as
    far from 0 as the one found. Assumes independent pairs whose differences are symmetric about 0 under the
    hypothesis; their distributions may be of any form otherwise, and may differ. Then P(p <= alpha) <= alpha
    exactly. p is never below `smallest_p(n)`.

    With more than ENUMERATED_FLIPS pairs, RANDOM_FLIPS random patterns and the one found are counted instead, which
    keeps the test valid (Phipson and Smyth 2010, doi:10.2202/1544-6115.1585).

    `scipy.stats.permutation_test` gives the same p where no sums tie (tests compare them), and takes about 100 times as
    long. It compares sums to within 100 eps of the observed one, so that accuracies that cancel do not tie: it gives
    7/8 for -.013, -.015, .013, .015 where every pattern is at least as far from 0.

    Args:
        differences: (..., n), n >= 1, finite.
        seed: of the random patterns; unused up to ENUMERATED_FLIPS pairs.
    """
    sample = np.asarray(differences, dtype=np.float64)
    n = sample.shape[-1]
    found = np.abs(sample.sum(axis=-1, keepdims=True))
    # Accuracies are multiples of 1 / images, so that sums tie; rounding must not tell equal sums apart.
    least = found - 1e-12 * np.abs(sample).sum(axis=-1, keepdims=True)
    if n <= ENUMERATED_FLIPS:
        return np.asarray((np.abs(sample @ _patterns(n)) >= least).mean(axis=-1))
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(n, RANDOM_FLIPS))
    as_far = (np.abs(sample @ signs) >= least).sum(axis=-1)
    return np.asarray((as_far + 1) / (RANDOM_FLIPS + 1))


def smallest_p(n: int) -> float:
    """What the test gives for n pairs at best: 2^(1 - n), since only two patterns have all signs alike.

    Beyond ENUMERATED_FLIPS pairs, 1 / (RANDOM_FLIPS + 1).
    """
    assert n > 0, n
    return max(2.0 ** (1 - n), 1 / (RANDOM_FLIPS + 1))


def pairs_needed(alpha: float, comparisons: int = 1) -> int:
    """The least number of pairs with which the test can reach `alpha`, after Holm's adjustment for `comparisons`.

    6 for one comparison at .05, 8 for four.
    """
    assert 0 < alpha < 1, alpha
    return 1 + math.ceil(math.log2(comparisons / alpha) - 1e-12)


def _patterns(n: int) -> NDArray[np.float64]:
    """Signs (n, 2^(n - 1)) of all patterns but their mirror images, which are as far from 0."""
    bits = np.arange(2 ** (n - 1))[None, :] >> np.arange(n)[:, None] & 1
    return np.where(bits, -1.0, 1.0)


# The permutation test of a trend.


ENUMERATED_ORDERS = 7
"""Up to so many values all orders are tried."""

RANDOM_ORDERS = math.factorial(ENUMERATED_ORDERS) - 1
"""How many random orders stand for all of them beyond that."""


def trend_test(x: ArrayLike, y: ArrayLike) -> tuple[float, float]:
    """One-sided p-values of the hypotheses that y (n,) does not rise with x (n,), and that it does not fall.

    If x does not matter, the values of y could as well stand in any other order: p is the share of orders in which the
    least-squares slope is as steep as the one found (Pitman 1937, doi:10.2307/2983647). Assumes of the values no more
    than that they are exchangeable. With more than ENUMERATED_ORDERS values, RANDOM_ORDERS random orders and the one
    observed are counted instead, which keeps the test valid (Phipson and Smyth 2010, doi:10.2202/1544-6115.1585).

    `scipy.stats.permutation_test` gives the same p up to ENUMERATED_ORDERS values (a test compares them). It returns
    one of the two p-values a call, compares slopes to within 100 eps of the observed one, which loses ties of slopes
    near 0, and takes other random orders, which would change published p-values.
    """
    values = np.asarray(y, dtype=np.float64)
    centred = np.asarray(x, dtype=np.float64)
    centred = centred - centred.mean()
    found = values @ centred
    slopes = np.append(values[_orders(len(values))] @ centred, [] if len(values) <= ENUMERATED_ORDERS else found)
    # Equal values tie; rounding must not tell equal sums apart.
    ulp = 1e-12 * float(np.abs(values) @ np.abs(centred))
    return float((slopes >= found - ulp).mean()), float((slopes <= found + ulp).mean())


@cache
def _orders(n: int) -> NDArray[np.int8]:
    """(orders, n)."""
    if n <= ENUMERATED_ORDERS:
        return np.array(list(itertools.permutations(range(n))), dtype=np.int8)
    rows = np.tile(np.arange(n, dtype=np.int8), (RANDOM_ORDERS, 1))
    return np.random.default_rng(0).permuted(rows, axis=1)


# Several tests at once.


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """p-values (..., m) of families of m tests, adjusted so that each may be compared with alpha itself.

    The chance of any false rejection in a family is then at most alpha, however the tests depend on each other
    (Holm 1979, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6, 65-70). In ascending
    order the k-th p is multiplied by m - k + 1, and none is below one before it.

    Args:
        p_values: (..., m), 0 to 1.
    """
    given = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(given, axis=-1)
    ascending = np.take_along_axis(given, order, axis=-1) * np.arange(given.shape[-1], 0, -1)
    adjusted = np.empty_like(given)
    np.put_along_axis(adjusted, order, np.minimum(np.maximum.accumulate(ascending, axis=-1), 1), axis=-1)
    return adjusted


# How many seeds a comparison needs.


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
