"""Means, differences and proportions of small samples, each with its interval."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from pipeline.stats.student import StudentMean, crossed_mean, student_mean


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

    The method is that of `pipeline.stats.student.crossed_mean`.

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
