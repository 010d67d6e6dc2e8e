"""The best of the values tried of one setting, by the mean over the seeds and by each seed's own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.stats.estimates import Estimate, mean_estimate


@dataclass(frozen=True, kw_only=True)
class BestTried:
    """In the unit of what was tried.

    Attributes:
        of_means: that of the highest mean accuracy over the seeds.
        of_seeds: each seed's own best, by ascending seeds.
        by_seed: mean of these with its interval; none where all seeds agree, since they agree on the values tried, not
            on the best one.
        at_end: whether `of_means` lies where the values tried end, so that one beyond it may be better.
        seeds_at_end: of how many seeds the own best lies there.
    """

    of_means: float
    of_seeds: list[float]
    by_seed: Estimate
    at_end: bool
    seeds_at_end: int


def best_tried(
    top1: NDArray[np.float64],
    tried: Sequence[float],
    confidence: float,
    *,
    ends: Sequence[float],
    geometric: bool = False,
) -> BestTried:
    """The best is one of those tried, the smaller of two alike, so no interval is finer than their distances.

    Args:
        top1: (values tried, seeds), 0 to 1; NaN where a run did not finish, which then is never the best. One run at
            least of each seed finished.
        tried: ascending.
        confidence: coverage of the interval, in (0, 1).
        ends: those of `tried` beyond which a better one may lie.
        geometric: whether the mean and its interval are of the logarithms; the values are then above 0, and there is
            no standard deviation in their unit.
    """
    assert top1.shape[0] == len(tried), top1.shape
    # What did not finish is worse than all that did.
    accuracies = np.nan_to_num(top1, nan=-1.0)
    assert (accuracies.max(axis=0) >= 0).all(), "a seed without a finished run"
    values = np.asarray(tried, dtype=np.float64)
    of_means = float(values[accuracies.mean(axis=1).argmax()])
    of_seeds = values[accuracies.argmax(axis=0)]
    return BestTried(
        of_means=of_means,
        of_seeds=of_seeds.tolist(),
        by_seed=_geometric_mean(of_seeds, confidence) if geometric else on_a_grid(of_seeds, confidence),
        at_end=of_means in ends,
        seeds_at_end=int(np.isin(of_seeds, ends).sum()),
    )


def on_a_grid(values: NDArray[np.float64], confidence: float) -> Estimate:
    """Mean of `values` (n,), with Student's t interval where they differ at all."""
    found = mean_estimate(values, confidence)
    return replace(found, low=None, high=None) if np.ptp(values) == 0 else found


def _geometric_mean(values: NDArray[np.float64], confidence: float) -> Estimate:
    logs = on_a_grid(np.log2(values), confidence)
    low, high = (None if end is None else float(2.0**end) for end in (logs.low, logs.high))
    return Estimate(n=logs.n, mean=float(2.0**logs.mean), sd=None, low=low, high=high)
