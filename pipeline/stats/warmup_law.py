"""How the best warm-up grows with the batch size (McCord and Dash 2021, Gradual warmup experiments)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.stats.best_tried import BestTried, best_tried, on_a_grid
from pipeline.stats.estimates import Estimate


@dataclass(frozen=True, kw_only=True)
class BestWarmup(BestTried):
    """Of one batch size; warm-ups in epochs. No warm-up at all is no end: nothing lies beyond it."""

    batch_size: int


@dataclass(frozen=True, kw_only=True)
class WarmupLaw:
    """What the seeds agree on.

    Attributes:
        best: by batch size.
        slope: p of best warm-up ~ batch size ** p, over the seeds: 1 where it grows as the batch does, 0 where it
            does not grow. None with one batch size, or where no warm-up at all is the best of some seed; without an
            interval where the seeds' slopes agree.
        per_doubling: epochs by which the best warm-up grows as the batch doubles, over the seeds; it holds for no
            warm-up at all too. None with one batch size.
    """

    best: list[BestWarmup]
    slope: Estimate | None
    per_doubling: Estimate | None


def warmup_law(
    top1: NDArray[np.float64], warmups: Sequence[float], batch_sizes: Sequence[int], confidence: float
) -> WarmupLaw:
    """The best warm-up of each batch size, and the slopes of straight lines through them.

    Each seed has lines of its own, by least squares; a slope is the mean of theirs with Student's t interval. What is
    best is decided by `best_tried`.

    Args:
        top1: (warm-ups, batch sizes, seeds), 0 to 1; NaN where a run did not finish, which then is never the best.
            One run at least of each batch size and seed finished.
        warmups: in epochs, ascending.
        batch_sizes: in images, ascending.
        confidence: coverage of the intervals, in (0, 1).
    """
    assert top1.shape[:2] == (len(warmups), len(batch_sizes)), top1.shape
    best = [
        BestWarmup(
            batch_size=int(batch_size),
            **vars(best_tried(top1[:, index], warmups, confidence, ends=warmups[-1:])),
        )
        for index, batch_size in enumerate(batch_sizes)
    ]
    of_seeds = np.array([row.of_seeds for row in best])
    doublings = np.log2(np.asarray(batch_sizes, dtype=np.float64))
    power = None if (of_seeds == 0).any() else _slope(np.log2(of_seeds), doublings, confidence)
    return WarmupLaw(best=best, slope=power, per_doubling=_slope(of_seeds, doublings, confidence))


def _slope(best: NDArray[np.float64], doublings: NDArray[np.float64], confidence: float) -> Estimate | None:
    """Of best (batch sizes, seeds) against the batch sizes' logarithms."""
    if len(doublings) < 2:
        return None
    slopes = np.polyfit(doublings, best, 1)[0]
    # Beyond the twelfth place there is rounding.
    return on_a_grid(slopes.round(12) + 0.0, confidence)
