"""Divide the measured time of a step into compute, input, synchronization and communication."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

THRESHOLD = 0.1
"""Share of a step above which a part other than compute bounds it.

Removing a smaller part would make training faster by a ninth at most, about the accuracy of times on a busy machine.
"""

CONFIDENCE = 0.9
"""Minimum probability with which an interval covers its median."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of steps, each (rounds, ranks, steps), taken in turn within each round.

    Attributes:
        full: unchanged.
        local: without exchange of gradients; no rank waits for another.
        synthetic: like `local`, with images that take no time.
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
    """The median over rounds, and order statistics that cover it with probability `CONFIDENCE` or more."""

    median: float
    low: float
    high: float

    @property
    def has_sign(self) -> bool:
        """Whether the rounds show that a difference is above or below 0, or exactly 0 in all of them."""
        return self.low > 0 or self.high < 0 or self.low == self.high == 0


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The parts of a step's time.

    Attributes:
        step: seconds of a step.
        parts: `compute`, `input`, `synchronization`, `communication` -> seconds of a step. Within each round they add
            up to the step; noise can make one of them negative.
        shares: parts as shares of the step.
        candidates: the parts that may bound the step, the likeliest first; several if the rounds vary too much.
    """

    step: MedianEstimate
    parts: Mapping[str, MedianEstimate]
    shares: Mapping[str, MedianEstimate]
    candidates: tuple[str, ...]

    @property
    def decided(self) -> bool:
        """Whether one part bounds the step."""
        return len(self.candidates) == 1


def diagnose(times: StepTimes) -> Diagnosis:
    """Divide a step into parts by comparing the variants of training.

    Each round counts by the mean over its steps, so that rare costs count too. The typical rank is the lower median
    over ranks, so that one slow rank of two is not typical.

    * compute: the typical rank's step with synthetic images and without exchange;
    * input: how much longer its step is with real images;
    * synchronization: how much longer the longest step of all ranks is, for which the others would wait;
    * communication: how much longer the step is with exchange of gradients. Communication that the backward pass hides
      costs nothing and does not count.

    The largest of the last three bounds a step if its share is `THRESHOLD` or more; otherwise compute does. If an
    interval contains the threshold, or overlaps that of the largest part, both are candidates.
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
    """Return the median and its interval of (rounds,) independent values of one distribution.

    The interval assumes no form of the distribution. The k-th smallest and the k-th largest of n values cover the
    median with probability 1 - 2 P(B < k), B ~ Binomial(n, 1/2) (David
    and Nagaraja 2003, Order Statistics, section 7.1).
    """
    ordered, n = np.sort(values), len(values)
    # With few rounds even the extremes cover less than `CONFIDENCE`; no interval is wider.
    k = max([1, *(k for k in range(1, n // 2 + 1) if 1 - 2 * binom.cdf(k - 1, n, 0.5) >= CONFIDENCE)])
    return MedianEstimate(median=float(np.median(ordered)), low=float(ordered[k - 1]), high=float(ordered[n - k]))


def _typical(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (rounds,): the lower median over ranks of each rank's mean over steps."""
    typical: NDArray[np.float64] = np.quantile(times.mean(axis=-1), 0.5, axis=1, method="lower")
    return typical


def _longest(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (rounds,): the mean over steps of the longest time of all ranks."""
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
