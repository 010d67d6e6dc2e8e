"""Draws of the filter, seeds and settings: what is independent of what, and hence what counts as a replicate.

Differences of one seed at several batch sizes share its initialization, its order and the filter's draw: they are
averaged first, so that no setting counts as a replicate. Seeds of one draw of the filter share that draw's luck:
with several draws, each draw's mean over its seeds counts once. With one draw the seeds are the replicates, and
what is found holds for that draw alone.

All draws of a study are trained with the same seeds. What a seed's initialization and order do to one arm more than to
the other is in the difference of every draw, whatever the control is, so that the draws' means are not independent.
Draws and seeds are therefore crossed: each factor adds its own variance.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.stats.estimates import Estimate, crossed_difference, mean_estimate
from pipeline.stats.sign_flip import sign_flip_test
from pipeline.stats.student import StudentMean, crossed_mean, student_mean


def n_pairs(shape: tuple[int, ...]) -> int:
    """How many pairs the sign-flip test of a table (draws, seeds) has: the seeds of one draw, or the fewer of both."""
    draws, seeds = shape[-2:]
    return seeds if draws == 1 else min(draws, seeds)


def level_mean(differences: ArrayLike, *, rounding: float = 0.0) -> StudentMean:
    """Student's mean of differences (..., draws, seeds), over draws where there are several, else over seeds.

    Args:
        differences: treated - control of the same draw and seed, complete, two seeds or more.
        rounding: standard deviation that rounding gives each difference, in its unit; 0 for values not rounded.
    """
    values = np.asarray(differences, dtype=np.float64)
    mean = crossed_mean(values) if values.shape[-2] > 1 else student_mean(values[..., 0, :])
    return mean.blurred(rounding / (values.shape[-2] * values.shape[-1]) ** 0.5)


def level_estimate(differences: ArrayLike, confidence: float, *, rounding: float = 0.0) -> Estimate:
    """Mean of one table (draws, seeds) with its interval, which is None with a single seed.

    Args:
        rounding: as `level_mean`.

    Raises:
        ValueError: no values, not two-dimensional, not finite, or a confidence out of range.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"expected a table (draws, seeds) that is not empty, got shape {values.shape}")
    crossed = len(values) > 1
    found = crossed_difference(values, confidence) if crossed else mean_estimate(values[0], confidence)
    if found.low is None or not rounding:
        return found
    mean = level_mean(values, rounding=rounding)
    low, high = mean.interval(confidence)
    return replace(found, low=float(low), high=float(high))


def level_sign_flip(differences: ArrayLike) -> NDArray[np.float64]:
    """p-values (...) of the sign-flip test of differences (..., draws, seeds), over the seeds of a single draw.

    With several draws neither the draws' means nor the seeds' means are independent, so that no flipping is exact.
    The larger of both p-values is then a hurdle beside the t test of `level_mean`, not a test of its own.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.shape[-2] == 1:
        return sign_flip_test(values[..., 0, :])
    return np.maximum(sign_flip_test(values.mean(axis=-1)), sign_flip_test(values.mean(axis=-2)))
