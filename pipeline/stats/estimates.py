"""Means with intervals, by Student's t."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

# Student's t of means: the intervals and tests that go with a mean, its standard error and its degrees of freedom.
#
# All functions take many samples at once, along the leading axes `...`, so that the simulation of their
# error rates (benchmarks/statistics_error_rates.py) runs the very code that judges a study.


Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StudentMean:
    """Means that follow Student's t about the truth, in units of their standard error.

    Attributes:
        mean: (...), in the unit of the values.
        error: (...), standard error of the mean, in the same unit; 0 where all values are equal.
        freedom: (...), degrees of freedom, above 0.
    """

    mean: Floats
    error: Floats
    freedom: Floats

    def blurred(self, error: ArrayLike) -> "StudentMean":
        """Of values that were rounded, which moves the mean by `error` (a standard deviation, in the values' unit).

        Values that round to the same seem to agree beyond doubt: their own spread does not hold what rounding took
        from it, nor what it did to all alike.
        """
        return replace(self, error=np.hypot(self.error, error))

    def interval(self, confidence: float) -> tuple[Floats, Floats]:
        """Ends (...), (...) of the central confidence interval; `confidence` in (0, 1)."""
        half = stats.t.ppf((1 + confidence) / 2, self.freedom) * self.error
        return self.mean - half, self.mean + half

    def p_difference(self) -> Floats:
        """Two-sided p-values (...) of the hypothesis that the true mean is 0."""
        return np.asarray(2 * stats.t.sf(_ratio(np.abs(self.mean), self.error), self.freedom))

    def p_equivalence(self, margin: float) -> Floats:
        """p-values (...) of the hypothesis that the true mean is `margin` or more away from 0.

        Two one-sided t tests, of which the larger p counts (Schuirmann 1987, doi:10.1007/BF01068419). p <= alpha
        exactly where the interval of confidence 1 - 2 alpha lies between -margin and margin. Skewed differences make
        it err more often at one margin: 6 to 7 times in 100 at alpha .05 where one arm's noise is exponential
        (benchmarks/statistics_error_rates.py).

        Args:
            margin: in the unit of the values, above 0; to be chosen before the values are seen.
        """
        assert margin > 0, margin
        return np.asarray(stats.t.sf(_ratio(margin - np.abs(self.mean), self.error), self.freedom))


def student_mean(values: ArrayLike) -> StudentMean:
    """Means of samples (..., n), n >= 2, of independent draws.

    Exact for normal values. Skewed ones make a small sample's t test err more often than stated.
    """
    sample = np.asarray(values, dtype=np.float64)
    n = sample.shape[-1]
    assert n > 1, "one value has no spread"
    mean = sample.mean(axis=-1)
    return StudentMean(mean=mean, error=sample.std(axis=-1, ddof=1) / n**0.5, freedom=np.full(mean.shape, n - 1.0))


def rounding_sd(step: float) -> float:
    """Standard deviation of what rounding to multiples of `step` adds to a value: that of the uniform distribution."""
    return step / 12**0.5


def crossed_mean(values: ArrayLike) -> StudentMean:
    """Means of tables (..., I, J), I and J >= 2, whose rows share draws of one factor and whose columns of another.

    With d_ij = m + a_i + b_j + e_ij, the variance of the mean is var(a)/I + var(b)/J + var(e)/(IJ). The means of the
    rows have the variance var(a) + var(e)/J between them, those of the columns var(b) + var(e)/I, so that the sum of
    both divided by their numbers is never too small on average. The degrees of freedom are those of the factor with
    fewer values. Satterthwaite's (1946, doi:10.2307/3002019) are more, and uncertain where a factor has few values:
    with two draws or two seeds its test errs in up to 12 % instead of 5 %, with three in up to 7 %.
    """
    table = np.asarray(values, dtype=np.float64)
    sizes = table.shape[-2:]
    assert min(sizes) > 1, "one row or column leaves its factor unknown"
    rows = table.mean(axis=-1).var(axis=-1, ddof=1) / sizes[0]
    columns = table.mean(axis=-2).var(axis=-1, ddof=1) / sizes[1]
    variance = rows + columns
    freedom = np.full(variance.shape, min(sizes) - 1.0)
    return StudentMean(mean=table.mean(axis=(-2, -1)), error=np.sqrt(variance), freedom=freedom)


def _ratio(distance: Floats, error: Floats) -> Floats:
    """distance / error, infinite of the distance's sign where the error is 0; 0 where both are."""
    limit = np.where(distance == 0, 0.0, np.copysign(np.inf, distance))
    return np.divide(distance, error, out=limit, where=error > 0)


# Means, differences and proportions of small samples, each with its interval.


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A sample's mean with what is known of its certainty.

    Attributes:
        n: size of the sample.
        mean: in the unit of the values, as the rest.
        sd: sample standard deviation (n - 1 in the denominator); None where there is no spread to tell, as for n = 1.
        low, high: ends of the confidence interval of the mean; None where `sd` is.
    """

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None


def mean_estimate(values: ArrayLike, confidence: float, *, rounding: float = 0.0) -> Estimate:
    """Mean of `values` (n,) with Student's t interval.

    Args:
        values: independent draws, finite, at least one.
        confidence: coverage of the interval, in (0, 1).
        rounding: standard deviation that rounding gives each value, in its unit; 0 for values not rounded.

    Raises:
        ValueError: no values, not one-dimensional, not finite, or a confidence out of range.
    """
    sample = _sample(values, ndim=1)
    _check_confidence(confidence)
    if len(sample) == 1:
        return Estimate(n=1, mean=float(sample[0]), sd=None, low=None, high=None)
    return _estimate(student_mean(sample).blurred(rounding / len(sample) ** 0.5), sample, confidence)


def crossed_difference(differences: ArrayLike, confidence: float) -> Estimate:
    """Mean of differences that share draws of one factor along rows and of another along columns.

    The method is that of `pipeline.stats.estimates.crossed_mean`.

    Args:
        differences: (I, J), e.g. draws of a filter by seeds, against a control that all draws have in common.

    Returns:
        n is I, the number of rows; sd that between the rows. No interval where I or J is 1.

    Raises:
        ValueError: as `mean_estimate`.
    """
    values = _sample(differences, ndim=2)
    _check_confidence(confidence)
    if min(values.shape) == 1:
        return Estimate(n=len(values), mean=float(values.mean()), sd=None, low=None, high=None)
    return _estimate(crossed_mean(values), values.mean(axis=1), confidence)


def wilson_interval(successes: int, n: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a proportion, e.g. of an accuracy over n test images.

    Raises:
        ValueError: n < 1, successes outside 0 to n, or a confidence out of range.
    """
    _check_confidence(confidence)
    interval = stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


def _estimate(found: StudentMean, replicates: NDArray[np.float64], confidence: float) -> Estimate:
    low, high = found.interval(confidence)
    sd = float(replicates.std(ddof=1))
    return Estimate(n=len(replicates), mean=float(found.mean), sd=sd, low=float(low), high=float(high))


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
