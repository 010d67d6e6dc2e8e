"""How the best warm-up grows with the batch size (McCord and Dash 2021, Gradual warmup experiments)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.stats.estimates import Estimate, mean_estimate


@dataclass(frozen=True, kw_only=True)
class BestWarmup:
    """Of one batch size; warm-ups in epochs.

    Attributes:
        of_means: that of the highest mean accuracy over the seeds.
        by_seed: mean and interval of each seed's own best; no interval where all seeds agree, since they agree on the
            warm-ups tried, not on the best one.
        at_end: whether `of_means` is the longest that was tried, so that a longer one may be better.
        seeds_at_end: of how many seeds the own best is the longest that was tried.
    """

    batch_size: int
    of_means: float
    by_seed: Estimate
    at_end: bool
    seeds_at_end: int


@dataclass(frozen=True, kw_only=True)
class WarmupLaw:
    """What the seeds agree on.

    Attributes:
        best: by batch size.
        slope: p of best warm-up ~ batch size ** p, over the seeds: 1 where it grows as the batch does, 0 where it
            does not grow. None with one batch size, or where no warm-up at all is the best of some seed; without an
            interval where the seeds' slopes agree.
    """

    best: list[BestWarmup]
    slope: Estimate | None


def warmup_law(
    top1: NDArray[np.float64], warmups: Sequence[float], batch_sizes: Sequence[int], confidence: float
) -> WarmupLaw:
    """The best warm-up of each batch size, and the slope of a straight line through their logarithms.

    Each seed has a line of its own, by least squares; the slope is the mean of theirs with Student's t interval. The
    best is one of those tried, the shorter of two alike, so no interval is finer than their distances.

    Args:
        top1: (warm-ups, batch sizes, seeds), 0 to 1; NaN where a run did not finish, which then is never the best.
            One run at least of each batch size and seed finished.
        warmups: in epochs, ascending.
        batch_sizes: in images, ascending.
        confidence: coverage of the intervals, in (0, 1).
    """
    assert top1.shape[:2] == (len(warmups), len(batch_sizes)), top1.shape
    tried = np.asarray(warmups, dtype=np.float64)
    # What did not finish is worse than all that did.
    accuracies = np.nan_to_num(top1, nan=-1.0)
    assert (accuracies.max(axis=0) >= 0).all(), "a batch size without a finished run"
    of_means = accuracies.mean(axis=2).argmax(axis=0)
    by_seed = tried[accuracies.argmax(axis=0)]
    best = [
        BestWarmup(
            batch_size=int(batch_size),
            of_means=float(tried[index]),
            by_seed=_on_a_grid(seeds, confidence),
            at_end=bool(index == len(tried) - 1),
            seeds_at_end=int((seeds == tried[-1]).sum()),
        )
        for batch_size, index, seeds in zip(batch_sizes, of_means.tolist(), by_seed, strict=True)
    ]
    return WarmupLaw(best=best, slope=_slope(by_seed, batch_sizes, confidence))


def _slope(best: NDArray[np.float64], batch_sizes: Sequence[int], confidence: float) -> Estimate | None:
    """Of best (batch sizes, seeds) against batch size, both as logarithms."""
    if len(batch_sizes) < 2 or (best == 0).any():
        return None
    slopes = np.polyfit(np.log(np.asarray(batch_sizes, dtype=np.float64)), np.log(best), 1)[0]
    # Beyond the twelfth place there is rounding.
    return _on_a_grid(slopes.round(12) + 0.0, confidence)


def _on_a_grid(values: NDArray[np.float64], confidence: float) -> Estimate:
    """Mean of `values` (n,), with Student's t interval where they differ at all."""
    found = mean_estimate(values, confidence)
    return replace(found, low=None, high=None) if np.ptp(values) == 0 else found
