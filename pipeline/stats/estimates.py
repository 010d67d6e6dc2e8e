"""Means, differences and proportions of small samples, with Student's t intervals and tests.

`StudentMean` and the functions that return one take many samples at once, along the leading axes `...`. So the
simulation of their error rates (benchmarks/statistics_error_rates.py) runs the code that tests a study. The number of
false runs that an audit excludes has exact probabilities: the sample is without replacement.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy  # which loads scipy.stats at its first use: half a second that ranks of a training save
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_MAX_DECIMALS, _DOUBLE_BYTES = 12, 8


@dataclass(frozen=True, kw_only=True)
class StudentMean:
    """Means that follow Student's t around the true mean, in units of their standard error.

    Attributes:
        mean: (...), in the unit of the values.
        error: (...), standard error of the mean, in the same unit; 0 where all values are equal.
        dof: (...), degrees of freedom, above 0.
    """

    mean: Floats
    error: Floats
    dof: Floats

    def with_rounding_error(self, error: ArrayLike) -> "StudentMean":
        """Add the error of rounded values: a standard deviation of the mean, in the values' unit.

        Values that round to the same number seem to agree exactly. Their spread lacks the part that rounding
        removed, and the shift that rounding gave to all of them.
        """
        return replace(self, error=np.hypot(self.error, error))

    def interval(self, confidence: float) -> tuple[Floats, Floats]:
        """Return the ends (...), (...) of the central confidence interval; `confidence` in (0, 1)."""
        half_width = scipy.stats.t.ppf((1 + confidence) / 2, self.dof) * self.error
        return self.mean - half_width, self.mean + half_width

    def p_difference(self) -> Floats:
        """Return two-sided p-values (...) of the hypothesis that the true mean is 0."""
        return np.asarray(2 * scipy.stats.t.sf(_ratio(np.abs(self.mean), self.error), self.dof))

    def p_equivalence(self, margin: float) -> Floats:
        """Return p-values (...) of the hypothesis that the true mean is `margin` or more away from 0.

        Two one-sided t tests, of which the larger p counts (Schuirmann 1987, doi:10.1007/BF01068419). p <= alpha
        exactly if the interval of confidence 1 - 2 alpha lies between -margin and margin. Skewed differences make
        it err more often at one margin: 6 to 7 times in 100 at alpha 0.05 if one arm's noise is exponential
        (benchmarks/statistics_error_rates.py).

        Args:
            margin: in the unit of the values, above 0; choose it before the values are seen.
        """
        assert margin > 0, margin
        return np.asarray(scipy.stats.t.sf(_ratio(margin - np.abs(self.mean), self.error), self.dof))


def student_mean(values: ArrayLike) -> StudentMean:
    """Return the means of samples (..., n), n >= 2, of independent values.

    Exact for normal values. With skewed values a small sample's t test errs more often than stated.
    """
    sample = np.asarray(values, dtype=np.float64)
    n = sample.shape[-1]
    assert n > 1, "one value has no spread"
    mean = sample.mean(axis=-1)
    return StudentMean(mean=mean, error=sample.std(axis=-1, ddof=1) / n**0.5, dof=np.full(mean.shape, n - 1.0))


def rounding_sd(step: float) -> float:
    """Return the standard deviation of the error of rounding to multiples of `step`: of a uniform distribution."""
    return step / 12**0.5


def decimal_step(values: ArrayLike) -> float:
    """Return the step of values (n,) that were written with few decimals: 0.01 for 0.9 and 0.85.

    It is 10^-d if d decimals write every value exactly, up to 12; of integers 1.
    """
    numbers = np.asarray(values)
    if numbers.dtype.kind != "f":
        return 1.0
    # Sums of rounded values are off in the last digit; numbers of less precision have no 12 digits.
    exact = np.round(numbers, _MAX_DECIMALS) if numbers.itemsize >= _DOUBLE_BYTES else numbers
    texts = (np.format_float_positional(value, trim="-") for value in exact)
    return float(10.0 ** -max((len(text.partition(".")[2]) for text in texts), default=0))


def crossed_mean(values: ArrayLike) -> StudentMean:
    """Return the means of tables (..., I, J), I and J >= 2, of two crossed random factors.

    With d_ij = m + a_i + b_j + e_ij, the variance of the mean is var(a)/I + var(b)/J + var(e)/(IJ). The row means
    have the variance var(a) + var(e)/J, the column means var(b) + var(e)/I. So the sum of both, each divided by its
    number, is never too small on average. The degrees of freedom are those of the factor with fewer values.
    Satterthwaite's (1946, doi:10.2307/3002019) are more, and uncertain if a factor has few values: with two draws or
    two seeds its test errs in up to 12 % instead of 5 %, with three in up to 7 %.
    """
    table = np.asarray(values, dtype=np.float64)
    sizes = table.shape[-2:]
    assert min(sizes) > 1, "one row or column has no spread"
    rows = table.mean(axis=-1).var(axis=-1, ddof=1) / sizes[0]
    columns = table.mean(axis=-2).var(axis=-1, ddof=1) / sizes[1]
    variance = rows + columns
    dof = np.full(variance.shape, min(sizes) - 1.0)
    return StudentMean(mean=table.mean(axis=(-2, -1)), error=np.sqrt(variance), dof=dof)


def _ratio(distance: Floats, error: Floats) -> Floats:
    """Return distance / error; if the error is 0, infinity with the distance's sign; 0 if both are 0."""
    limit = np.where(distance == 0, 0.0, np.copysign(np.inf, distance))
    return np.divide(distance, error, out=limit, where=error != 0)  # a NaN error gives NaN, which decides nothing


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A sample's mean and its confidence interval.

    Attributes:
        n: size of the sample.
        mean: in the unit of the values, as are the next fields.
        sd: sample standard deviation (n - 1 in the denominator); None if there is no spread, as for n = 1.
        low, high: ends of the confidence interval of the mean; None if `sd` is None.
    """

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None


def mean_estimate(values: ArrayLike, confidence: float, *, rounding: float = 0.0) -> Estimate:
    """Return the mean of `values` (n,) with Student's t interval.

    Args:
        values: independent, finite, at least one.
        confidence: coverage of the interval, in (0, 1).
        rounding: standard deviation of each value's rounding error, in its unit; 0 for values not rounded.

    Raises:
        ValueError: no values, not one-dimensional, not finite, or a confidence out of range.
    """
    sample = _sample(values, ndim=1)
    _check_confidence(confidence)
    if len(sample) == 1:
        return Estimate(n=1, mean=float(sample[0]), sd=None, low=None, high=None)
    return _estimate(student_mean(sample).with_rounding_error(rounding / len(sample) ** 0.5), sample, confidence)


def crossed_estimate(values: ArrayLike, confidence: float, *, rounding: float = 0.0) -> Estimate:
    """Return the mean of values over two crossed random factors, by the method of `crossed_mean`.

    Args:
        values: (I, J), e.g. accuracies of draws of a filter by seeds, or their differences from a control that all
            draws share.
        rounding: as `mean_estimate`.

    Returns:
        n is I, the number of rows; sd is that between the rows. No interval if I or J is 1.

    Raises:
        ValueError: as `mean_estimate`.
    """
    table = _sample(values, ndim=2)
    _check_confidence(confidence)
    if min(table.shape) == 1:
        return Estimate(n=len(table), mean=float(table.mean()), sd=None, low=None, high=None)
    mean = crossed_mean(table).with_rounding_error(rounding / table.size**0.5)
    return _estimate(mean, table.mean(axis=1), confidence)


def wilson_interval(successes: int, n: int, confidence: float) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion, e.g. of an accuracy over n test images.

    Raises:
        ValueError: n < 1, successes outside 0 to n, or a confidence out of range.
    """
    _check_confidence(confidence)
    interval = scipy.stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def _estimate(mean: StudentMean, replicates: NDArray[np.float64], confidence: float) -> Estimate:
    low, high = mean.interval(confidence)
    sd = float(replicates.std(ddof=1))
    return Estimate(n=len(replicates), mean=float(mean.mean), sd=sd, low=float(low), high=float(high))


def _sample(values: ArrayLike, *, ndim: int) -> NDArray[np.float64]:
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != ndim or sample.size == 0:
        raise ValueError(f"expected a sample of {ndim} dimension(s) that is not empty, got shape {sample.shape}")
    if not np.isfinite(sample).all():
        raise ValueError("the sample holds NaN or infinity")
    return sample


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")


def chance_of_detection(n_runs: int, n_audited: int, n_false: int) -> float:
    """Return the probability that a sample has at least one false run, 0 to 1: the hypergeometric distribution.

    Args:
        n_runs: runs that the sample is taken from.
        n_audited: runs of the sample, without replacement, at most `n_runs`.
        n_false: false ones among `n_runs`.
    """
    assert 0 <= n_false <= n_runs
    assert 0 <= n_audited <= n_runs
    return 1 - _chance_of_none(n_runs, n_audited, n_false)


def _chance_of_none(n_runs: int, n_audited: int, n_false: int) -> float:
    return math.comb(n_runs - n_false, n_audited) / math.comb(n_runs, n_audited)


def excluded_count(n_runs: int, n_audited: int, alpha: float) -> int:
    """Return the fewest false runs that an audit without findings excludes; `n_runs` + 1 if it excludes none.

    If as many or more runs were false, a sample would find none with a probability of at most `alpha`. Since each of a
    finite number of runs is audited at most once, the bound is tighter than `excluded_share`.
    """
    counts = range(1, n_runs + 1)
    return next((m for m in counts if _chance_of_none(n_runs, n_audited, m) <= alpha), n_runs + 1)


def excluded_share(n_audited: int, alpha: float) -> float:
    """Return the share of false runs, 0 to 1, that an audit without findings excludes: 1 - alpha^(1 / n_audited).

    It holds for samples with replacement, and for any number of runs.
    """
    return 1.0 - float(alpha ** (1 / n_audited)) if n_audited else 1.0
