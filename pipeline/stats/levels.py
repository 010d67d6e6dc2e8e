"""Draws of the filter, seeds and settings: what is independent of what, and hence what counts as a replicate.

Differences of one seed at several batch sizes share its initialisation, its order and the filter's draw: they are
averaged first, so that no setting counts as a replicate. Seeds of one draw of the filter share that draw's luck:
with several draws, each draw's mean over its seeds counts once. With one draw the seeds are the replicates, and
what is found holds for that draw alone.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.stats.estimates import Estimate, crossed_difference, mean_estimate
from pipeline.stats.sign_flip import sign_flip_test
from pipeline.stats.student import StudentMean, crossed_mean, student_mean


def is_crossed(differences: NDArray[np.float64], *, shared_control: bool) -> bool:
    """Whether rows and columns of (..., draws, seeds) both vary.

    So it is with several draws against a control that all of them share (`full` is one run a seed): the noise of
    the control's seeds is in every draw's mean.
    """
    return shared_control and differences.shape[-2] > 1


def n_pairs(shape: tuple[int, ...], *, shared_control: bool) -> int:
    """How many pairs the sign-flip test of a table (draws, seeds) has: the replicates, or the fewer of both levels."""
    draws, seeds = shape[-2:]
    if draws == 1:
        return seeds
    return min(draws, seeds) if shared_control else draws


def replicates(differences: ArrayLike) -> NDArray[np.float64]:
    """(..., draws, seeds) -> (..., n): the seeds of the only draw, or the mean of each draw."""
    values = np.asarray(differences, dtype=np.float64)
    return values[..., 0, :] if values.shape[-2] == 1 else values.mean(axis=-1)


def level_mean(differences: ArrayLike, *, shared_control: bool, rounding: float = 0.0) -> StudentMean:
    """Student's mean of differences (..., draws, seeds), over draws where there are several, else over seeds.

    Args:
        differences: treated - control of the same draw and seed, complete, two replicates or more; with several
            draws and a shared control two seeds or more as well.
        shared_control: whether all draws are compared with the same runs.
        rounding: standard deviation that rounding gives each difference, in its unit; 0 for values not rounded.
    """
    values = np.asarray(differences, dtype=np.float64)
    crossed = is_crossed(values, shared_control=shared_control)
    mean = crossed_mean(values) if crossed else student_mean(replicates(values))
    return mean.blurred(rounding / (values.shape[-2] * values.shape[-1]) ** 0.5)


def level_estimate(
    differences: ArrayLike, confidence: float, *, shared_control: bool, rounding: float = 0.0
) -> Estimate:
    """Mean of one table (draws, seeds) with its interval, which is None with a single replicate.

    Args:
        rounding: as `level_mean`.

    Raises:
        ValueError: no values, not two-dimensional, not finite, or a confidence out of range.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"expected a table (draws, seeds) that is not empty, got shape {values.shape}")
    crossed = is_crossed(values, shared_control=shared_control)
    found = crossed_difference(values, confidence) if crossed else mean_estimate(replicates(values), confidence)
    if found.low is None or not rounding:
        return found
    mean = level_mean(values, shared_control=shared_control, rounding=rounding)
    low, high = mean.interval(confidence)
    return replace(found, low=float(low), high=float(high))


def level_sign_flip(differences: ArrayLike, *, shared_control: bool) -> NDArray[np.float64]:
    """p-values (...) of the sign-flip test of differences (..., draws, seeds), over the replicates.

    With a shared control neither the draws' means nor the seeds' means are independent, so that no flipping is exact.
    The larger of both p-values is then a hurdle beside the t test of `level_mean`, not a test of its own.
    """
    values = np.asarray(differences, dtype=np.float64)
    found = sign_flip_test(replicates(values))
    if is_crossed(values, shared_control=shared_control):
        return np.maximum(found, sign_flip_test(values.mean(axis=-2)))
    return found
