"""Means, differences and proportions of small samples, each with its interval."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A sample's mean with what is known of its certainty.

    Attributes:
        n: size of the sample.
        mean: in the unit of the values, as the rest.
        sd: sample standard deviation (n - 1 in the denominator); None for n = 1.
        low, high: ends of the confidence interval of the mean; None for n = 1.
    """

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None


def mean_estimate(values: ArrayLike, confidence: float) -> Estimate:
    """Mean of `values` (n,) with Student's t interval.

    Args:
        values: independent draws, finite, at least one.
        confidence: coverage of the interval, in (0, 1).

    Raises:
        ValueError: no values, not one-dimensional, not finite, or a confidence out of range.
    """
    sample = _sample(values, ndim=1)
    _check_confidence(confidence)
    n, mean = len(sample), float(sample.mean())
    if n == 1:
        return Estimate(n=1, mean=mean, sd=None, low=None, high=None)
    sd = float(sample.std(ddof=1))
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * sd / n**0.5
    return Estimate(n=n, mean=mean, sd=sd, low=mean - half, high=mean + half)


def pooled_difference(differences: ArrayLike, confidence: float) -> Estimate:
    """Mean difference over several settings, with seeds (or other independent draws) as the replicates.

    The settings of one seed share its initialisation, its order and its draw of the random arm, so
    their differences are not independent: each seed counts once, with its mean over the settings.

    Args:
        differences: (n_seeds, n_settings), treated - control; complete.

    Raises:
        ValueError: as `mean_estimate`.
    """
    return mean_estimate(_sample(differences, ndim=2).mean(axis=1), confidence)


def crossed_difference(differences: ArrayLike, confidence: float) -> Estimate:
    """Mean of differences that share draws of one factor along rows and of another along columns.

    With d_ij = m + a_i + b_j + e_ij, the variance of the mean is var(a)/I + var(b)/J + var(e)/(IJ). The means of the
    rows have the variance var(a) + var(e)/J between them, those of the columns var(b) + var(e)/I, so that the sum of
    both divided by their numbers is never too small. Degrees of freedom after Satterthwaite (1946,
    doi:10.2307/3002019).

    Args:
        differences: (I, J), e.g. draws of a filter by seeds, against a control that all draws have in common.

    Returns:
        n is I, the number of rows; sd that between the rows. No interval where I or J is 1.

    Raises:
        ValueError: as `mean_estimate`.
    """
    values = _sample(differences, ndim=2)
    _check_confidence(confidence)
    mean = float(values.mean())
    if min(values.shape) == 1:
        return Estimate(n=len(values), mean=mean, sd=None, low=None, high=None)
    parts = [values.mean(axis=1 - axis).var(ddof=1) / values.shape[axis] for axis in (0, 1)]
    sd = float(values.mean(axis=1).std(ddof=1))
    variance = sum(parts)
    if variance == 0:
        return Estimate(n=len(values), mean=mean, sd=sd, low=mean, high=mean)
    freedom = variance**2 / sum(part**2 / (size - 1) for part, size in zip(parts, values.shape, strict=True))
    half = float(stats.t.ppf((1 + confidence) / 2, freedom)) * variance**0.5
    return Estimate(n=len(values), mean=mean, sd=sd, low=mean - half, high=mean + half)


def wilson_interval(successes: int, n: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a proportion, e.g. of an accuracy over n test images.

    Raises:
        ValueError: n < 1, successes outside 0 to n, or a confidence out of range.
    """
    _check_confidence(confidence)
    interval = stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    return float(interval.low), float(interval.high)


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
