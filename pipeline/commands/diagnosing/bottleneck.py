"""Which of compute, input, synchronization and communication a step's time goes to, from measured steps."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

THRESHOLD = 0.1
"""Share of a step from which a part other than compute bounds it.

Removing less would make training faster by a ninth at most, which is what a busy machine's clock is worth.
"""

CONFIDENCE = 0.9
"""Least probability with which an interval covers its median."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of steps, each (rounds, ranks, steps), taken in turn within each round.

    Attributes:
        full: as the study trains.
        local: the same, without exchanging gradients; nobody waits for another.
        synthetic: the same as local, with images that cost nothing.
    """

    full: NDArray[np.float64]
    local: NDArray[np.float64]
    synthetic: NDArray[np.float64]

    def __post_init__(self) -> None:
        for times in (self.full, self.local, self.synthetic):
            assert times.ndim == 3, times.shape
            assert times.shape[:2] == self.full.shape[:2], times.shape
            assert (times > 0).all(), times


@dataclass(frozen=True, kw_only=True)
class MedianEstimate:
    """The median over rounds, and order statistics between which it lies with `CONFIDENCE` or more."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Where the time of a step goes.

    Attributes:
        step: seconds.
        parts: `compute`, `input`, `synchronization`, `communication` -> seconds of a step. They add up to it within
            each round; noise can make one of them negative.
        shares: the same, of the step.
        candidates: what bounds the step; several, the likeliest first, where the spread over rounds does not tell.
    """

    step: MedianEstimate
    parts: Mapping[str, MedianEstimate]
    shares: Mapping[str, MedianEstimate]
    candidates: tuple[str, ...]

    @property
    def decided(self) -> bool:
        return len(self.candidates) == 1


def diagnose(times: StepTimes) -> Diagnosis:
    """Take a step apart by what each way to train leaves out.

    Of each round, by the mean over its steps, as what is paid at some steps alone counts too; with the typical rank
    (the lower median over ranks, so that one slow rank of two is not typical):

    * compute: the typical rank's step with synthetic images and no exchange;
    * input: by how much longer its step is with real images;
    * synchronization: by how much longer the longest step of all ranks is, for which the others would wait;
    * communication: by how much longer the step is where gradients are exchanged. What the backward pass hides
      costs nothing and does not count.

    A step is bound by the largest of the last three whose share is `THRESHOLD` or more, and otherwise by compute, which
    is what a step is for. Where an interval holds the threshold, or overlaps that of the largest, both stand.
    """
    parts = {
        "compute": _typical(times.synthetic),
        "input": _typical(times.local) - _typical(times.synthetic),
        "synchronization": _longest(times.local) - _typical(times.local),
        "communication": _typical(times.full) - _longest(times.local),
    }
    step = _typical(times.full)
    shares = {name: estimate(seconds / step) for name, seconds in parts.items()}
    return Diagnosis(
        step=estimate(step),
        parts={name: estimate(seconds) for name, seconds in parts.items()},
        shares=shares,
        candidates=_candidates(shares),
    )


def estimate(values: NDArray[np.float64]) -> MedianEstimate:
    """Of (rounds,) values that are independent and of one distribution, whatever it is.

    The k-th smallest and the k-th largest of n cover the median with probability 1 - 2 P(B < k), B ~ Binomial(n, 1/2)
    (David and Nagaraja 2003, Order Statistics, section 7.1).
    """
    ordered, n = np.sort(values), len(values)
    # With few rounds even the extremes cover less than was asked for; there is nothing wider.
    k = max([1, *(k for k in range(1, n // 2 + 1) if 1 - 2 * binom.cdf(k - 1, n, 0.5) >= CONFIDENCE)])
    return MedianEstimate(median=float(np.median(ordered)), low=float(ordered[k - 1]), high=float(ordered[n - k]))


def _typical(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """(rounds,): the lower median over ranks of each rank's mean over steps."""
    of_ranks: NDArray[np.float64] = np.quantile(times.mean(axis=-1), 0.5, axis=1, method="lower")
    return of_ranks


def _longest(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """(rounds,): the mean over steps of the longest of all ranks."""
    longest: NDArray[np.float64] = times.max(axis=1).mean(axis=-1)
    return longest


def _candidates(shares: Mapping[str, MedianEstimate]) -> tuple[str, ...]:
    overheads = {name: share for name, share in shares.items() if name != "compute" and share.high >= THRESHOLD}
    if not overheads:
        return ("compute",)
    largest = max(overheads, key=lambda name: overheads[name].median)
    low = overheads[largest].low
    close = [name for name, share in overheads.items() if name != largest and share.high > low]
    if low >= THRESHOLD:
        return (largest, *close)
    # The likelier one first.
    return (largest, *close, "compute") if overheads[largest].median >= THRESHOLD else ("compute", largest, *close)
