"""Student's t of means: the intervals and tests that go with a mean, its standard error and its degrees of freedom.

All functions take many samples at once, along the leading axes `...`, so that the simulation of their
error rates (benchmarks/statistics_error_rates.py) runs the very code that judges a study.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

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
