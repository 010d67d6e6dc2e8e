"""Sign-flip and permutation tests, Holm's adjustment, and the number of seeds for a given power."""

import itertools
import math
from functools import cache

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from pipeline.stats.estimates import student_mean

ENUMERATED_FLIPS = 16
"""Number of pairs up to which all sign patterns are enumerated."""

RANDOM_FLIPS: int = 2**ENUMERATED_FLIPS - 1
"""Number of random sign patterns for more pairs."""

ENUMERATED_ORDERS = 7
"""Number of values up to which all orders are enumerated."""

RANDOM_ORDERS = math.factorial(ENUMERATED_ORDERS) - 1
"""Number of random orders for more values."""

SIMULATED_PAIRS = 12
"""With more pairs, both tests together have almost the power of the t test alone: 0.5 points less than 80 %."""

_STUDIES = 10_000


def sign_flip_test(differences: ArrayLike, *, seed: int = 0) -> NDArray[np.float64]:
    """Return two-sided p-values (...) of the sign-flip test of samples (..., n) of paired differences.

    Fisher's randomization test for pairs (The Design of Experiments, 1935, section 21): if the arms do not differ,
    every difference could as well have the other sign. p is the share of sign patterns whose mean is at least as
    far from 0 as the observed one. Assumes independent pairs whose differences are symmetric about 0 under the
    hypothesis; their distributions may otherwise have any form, and may differ. Then P(p <= alpha) <= alpha
    exactly. p is never below `smallest_p(n)`.

    With more than ENUMERATED_FLIPS pairs, RANDOM_FLIPS random patterns and the observed one are counted instead,
    which keeps the test valid (Phipson and Smyth 2010, doi:10.2202/1544-6115.1585).

    `scipy.stats.permutation_test` gives the same p if no sums tie (tests compare them), and takes about 100 times as
    long. It compares sums to within 100 eps of the observed one, so that accuracies that cancel do not tie: it gives
    7/8 for -0.013, -0.015, 0.013, 0.015, although every pattern is at least as far from 0.

    Args:
        differences: (..., n), n >= 1, finite.
        seed: of the random patterns; unused up to ENUMERATED_FLIPS pairs.
    """
    sample = np.asarray(differences, dtype=np.float64)
    n = sample.shape[-1]
    observed = np.abs(sample.sum(axis=-1, keepdims=True))
    # Accuracies are multiples of 1 / images, so that sums tie; rounding must not separate equal sums.
    bound = observed - 1e-12 * np.abs(sample).sum(axis=-1, keepdims=True)
    if n <= ENUMERATED_FLIPS:
        return np.asarray((np.abs(sample @ _patterns(n)) >= bound).mean(axis=-1))
    rng, sums = np.random.default_rng(seed), np.zeros((*sample.shape[:-1], RANDOM_FLIPS))
    # One pair at a time: the patterns of thousands of pairs would take gigabytes.
    for differences_of_pair in np.moveaxis(sample, -1, 0):
        sums += differences_of_pair[..., None] * rng.choice([-1.0, 1.0], size=RANDOM_FLIPS)
    as_far = (np.abs(sums) >= bound).sum(axis=-1)
    return np.asarray((as_far + 1) / (RANDOM_FLIPS + 1))


def smallest_p(n: int) -> float:
    """Return the smallest p of the sign-flip test for n pairs: 2^(1 - n), since only two patterns have equal signs.

    With more than ENUMERATED_FLIPS pairs it is 1 / (RANDOM_FLIPS + 1).
    """
    assert n > 0, n
    return max(2.0 ** (1 - n), 1 / (RANDOM_FLIPS + 1))


def pairs_needed(alpha: float, comparisons: int = 1) -> int:
    """Return the smallest number of pairs with which the sign-flip test can reach `alpha`, Holm-adjusted.

    6 for one comparison at 0.05, 8 for four.
    """
    assert 0 < alpha < 1, alpha
    return 1 + math.ceil(math.log2(comparisons / alpha) - 1e-12)


def _patterns(n: int) -> NDArray[np.float64]:
    """Return the signs (n, 2^(n - 1)) of all patterns without their mirror images, which are as far from 0."""
    bits = np.arange(2 ** (n - 1))[None, :] >> np.arange(n)[:, None] & 1
    return np.where(bits, -1.0, 1.0)


def trend_test(x: ArrayLike, y: ArrayLike) -> tuple[float, float]:
    """Return one-sided p-values of the hypotheses that y (n,) does not rise with x (n,), and that it does not fall.

    If x does not matter, the values of y could as well have any other order: p is the share of orders in which the
    least-squares slope is as steep as the observed one (Pitman 1937, doi:10.2307/2983647). Assumes only that the
    values are exchangeable. With more than ENUMERATED_ORDERS values, RANDOM_ORDERS random orders and the observed
    one are counted instead, which keeps the test valid (Phipson and Smyth 2010, doi:10.2202/1544-6115.1585).

    `scipy.stats.permutation_test` gives the same p up to ENUMERATED_ORDERS values (a test compares them). It returns
    one of the two p-values per call, compares slopes to within 100 eps of the observed one, which loses ties of
    slopes near 0, and uses other random orders, which would change published p-values.
    """
    values = np.asarray(y, dtype=np.float64)
    centered = np.asarray(x, dtype=np.float64)
    centered = centered - centered.mean()
    observed = values @ centered
    slopes = np.append(values[_orders(len(values))] @ centered, [] if len(values) <= ENUMERATED_ORDERS else observed)
    # Equal values tie; rounding must not separate equal sums.
    ulp = 1e-12 * float(np.abs(values) @ np.abs(centered))
    return float((slopes >= observed - ulp).mean()), float((slopes <= observed + ulp).mean())


@cache
def _orders(n: int) -> NDArray[np.int8]:
    """Return the orders (orders, n) as indices."""
    if n <= ENUMERATED_ORDERS:
        return np.array(list(itertools.permutations(range(n))), dtype=np.int8)
    rows = np.tile(np.arange(n, dtype=np.int8), (RANDOM_ORDERS, 1))
    return np.random.default_rng(0).permuted(rows, axis=1)


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Adjust p-values (..., m) of families of m tests, so that each can be compared with alpha itself.

    The chance of any false rejection in a family is then at most alpha, however the tests depend on each other
    (Holm 1979, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6, 65-70). In ascending
    order the k-th p is multiplied by m - k + 1, and none is smaller than one before it.

    Args:
        p_values: (..., m), 0 to 1.
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, axis=-1)
    ascending = np.take_along_axis(p, order, axis=-1) * np.arange(p.shape[-1], 0, -1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.minimum(np.maximum.accumulate(ascending, axis=-1), 1), axis=-1)
    return adjusted


def paired_t_power(n: int, *, spread: float, difference: float, alpha: float) -> float:
    """Return the chance that the two-sided paired t test of n pairs detects a true difference.

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
    if n < 2 or not 0 < spread < math.inf or not 0 < alpha < 1:
        raise ValueError(f"expected n >= 2, a finite spread > 0 and alpha in (0, 1), got {n}, {spread} and {alpha}")
    bound = scipy.stats.t.isf(alpha / 2, n - 1)
    shift = abs(difference) / spread * n**0.5
    # Both tails as upper ones: SciPy's lower tail is NaN where it is tiny.
    return float(scipy.stats.nct.sf(bound, n - 1, shift) + scipy.stats.nct.sf(bound, n - 1, -shift))


def spread_interval(spread: float, n: int, confidence: float) -> tuple[float, float]:
    """Return the interval of the true standard deviation of n normal values with the sample value `spread`.

    (n - 1) spread^2 / sigma^2 follows chi-square with n - 1 degrees of freedom: for 4 values, sigma lies
    between 0.57 and 3.73 times theirs.

    Args:
        n: 2 or more.
        confidence: of the interval, in (0, 1).
    """
    tail = (1 - confidence) / 2
    low, high = (spread * float(((n - 1) / scipy.stats.chi2.ppf(at, n - 1)) ** 0.5) for at in (1 - tail, tail))
    return low, high


def required_seeds(spread: float, difference: float, alpha: float, power: float) -> int:
    """Return the smallest number of paired seeds with which the t test detects `difference` with the chance `power`.

    `spread` comes from a pilot study, whose uncertainty the result ignores (see `spread_interval`). A verdict also
    needs the sign-flip test: see `seeds_for_both_tests`.

    Runs of standard deviation 0.18 points whose arms do not correlate have differences of spread 0.255 points; alpha
    0.05 and power 0.8 then take 8 seeds for 0.3 points and 15 for 0.2. The normal approximation for two independent
    samples, 2 (1.960 + 0.842)^2 (0.18 / 0.3)^2, gives 6 and 13, too few because it takes the spread as known. If
    0.18 were the spread of the differences themselves, 6 and 9 would be enough.

    Args:
        spread, difference, alpha: as `paired_t_power`; the difference is not 0.
        power: in (alpha, 1).

    Raises:
        ValueError: a value out of range.
    """
    if not abs(difference) > 0 or not alpha < power < 1:  # NaN is not above 0 either
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
    """Return the chance that the t test and the exact sign-flip test of n pairs both detect a true difference.

    The share of 10,000 simulated samples of normal differences, the same ones at every call: a standard deviation of
    0.4 points at 80 %. At n = 6 all signs must be equal, which costs a sixth of the t test's power; at 12, 0.5 points.

    Args:
        n: pairs, 2 to SIMULATED_PAIRS.
        spread, difference, alpha: as `paired_t_power`.
    """
    assert 2 <= n <= SIMULATED_PAIRS, n
    return _both_detect(n, abs(difference) / spread, alpha)


@cache
def _both_detect(n: int, shift: float, alpha: float) -> float:
    samples = np.random.default_rng(0).standard_normal((_STUDIES, n)) + shift
    by_t = student_mean(samples).p_difference() <= alpha
    # Only samples that the t test rejects need the many sign patterns.
    by_signs = sign_flip_test(samples[by_t]) <= alpha
    return float(by_signs.sum() / _STUDIES)


def seeds_for_both_tests(spread: float, difference: float, alpha: float, power: float) -> int:
    """Return the smallest number of paired seeds with which both tests detect `difference` with the chance `power`.

    With more than SIMULATED_PAIRS the t test decides. Arguments and errors as in `required_seeds`.
    """
    n = max(required_seeds(spread, difference, alpha, power), pairs_needed(alpha))
    while n <= SIMULATED_PAIRS and both_tests_power(n, spread=spread, difference=difference, alpha=alpha) < power:
        n += 1
    return n
