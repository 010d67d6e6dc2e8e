"""Thresholds that drop a given share, and how stable the choice is."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Allocation = Literal["overall", "per_class", "balanced"]

# Relative difference below which values are tied: no threshold separates them.
_TIED = 1e-9
# Relative distance from the largest finite value to a threshold that drops none of them.
_BEYOND = 1e-6


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A value that images must exceed to be dropped, and the number of images that do.

    Attributes:
        value: above 0, in the scorer's unit; no image has this value.
        n_above: images that exceed it.
        alternative: the nearest possible count on the other side of the requested one; None
            if the request is met exactly or lies beyond all possible counts.
    """

    value: float
    n_above: int
    alternative: int | None


def threshold_for_share(values: NDArray[np.float64], share: float) -> Threshold:
    """Return the threshold that is exceeded by as close to `share` of the values as ties allow.

    It lies midway between two adjacent values, so that rounding moves no image across.
    Of two equally close counts it takes the smaller.

    Args:
        values: (N,) suspicion, at least 0, possibly infinite; N >= 1.
        share: 0 to 1.
    """
    assert len(values) > 0
    ordered = np.sort(values)
    lower = np.concatenate([[0.0], ordered])
    upper = np.concatenate([ordered, [np.inf]])
    # Gap i, from 0, lies between lower[i] and upper[i]. A threshold in it drops the N - i values from upper[i] on. Tied
    # values have no gap between them.
    gaps = np.flatnonzero((lower < upper * (1 - _TIED)) & np.isfinite(lower))
    counts = len(values) - gaps[::-1]
    target = share * len(values)
    # Rounded, so that 0.1 x 30 = 3.0000000000000004 requests 3.
    best = int(np.argmin(np.round(np.abs(counts - target), 6)))
    n_above = int(counts[best])
    return Threshold(
        value=_midpoint(lower[len(values) - n_above], upper[len(values) - n_above]),
        n_above=n_above,
        alternative=_alternative(counts, n_above, target),
    )


def thresholds_for_share(
    values: NDArray[np.float64], labels: NDArray[np.int64], share: float, allocation: Allocation
) -> dict[int, Threshold]:
    """Return for each class the threshold that drops its part of `share` of all images.

    Args:
        values: (N,) suspicion, as in `threshold_for_share`.
        labels: (N,) classes.
        allocation: `overall`: one threshold for all classes. `per_class`: each class loses the same share,
            to the nearest image. `balanced`: the remaining classes are as equal as their sizes allow, so
            that large classes lose more.
    """
    if allocation == "overall":
        threshold = threshold_for_share(values, share)
        return {int(label): threshold for label in np.unique(labels)}
    classes, counts = np.unique(labels, return_counts=True)
    total = round(share * len(labels))
    n_kept = len(labels) - total
    dropped = _apportion(counts, total) if allocation == "per_class" else counts - _balance(counts, n_kept)
    return {
        int(label): threshold_for_share(values[labels == label], n / count)
        for label, n, count in zip(classes, dropped.tolist(), counts.tolist(), strict=True)
    }


def _apportion(counts: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Divide `total` in proportion to `counts`, in integers: by largest remainder, then by class order.

    Rounding each class alone would drop nothing from a thousand classes of eight at a share of 6 %.
    """
    exact = counts * (total / counts.sum())
    parts: NDArray[np.int64] = np.floor(exact + 1e-9).astype(np.int64)
    remainders = np.argsort(parts - exact, kind="stable")
    parts[remainders[: total - parts.sum()]] += 1
    return parts


def _balance(counts: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Return how many of each class to keep so that `total` are kept and the largest class is as small as possible."""
    order = np.argsort(counts, kind="stable")
    kept = np.empty_like(counts)
    for n_done, index in enumerate(order):
        # The larger classes share what the smaller ones lack.
        kept[index] = min(counts[index], total // (len(counts) - n_done))
        total -= kept[index]
    return kept


def shares_above(values: NDArray[np.float64], thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share (t,), 0 to 1, of values (N,) that exceed each of thresholds (t,)."""
    below = np.searchsorted(np.sort(values), thresholds, side="right")
    return (len(values) - below) / len(values)


def curve_thresholds(values: NDArray[np.float64], n: int = 200) -> NDArray[np.float64]:
    """Return `n` thresholds in equal ratios, from one that nearly all of values (N,) exceed to one that none does.

    Empty if no value is both positive and finite.
    """
    usable = values[(values > 0) & np.isfinite(values)]
    if not len(usable):
        return np.empty(0)
    return np.geomspace(np.quantile(usable, 0.01), usable.max() * (1 + _BEYOND), n)


def score(values: NDArray[np.float64], threshold: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Scale suspicion (N,) to [0, 1]: v / (v + threshold).

    The score increases with the value, is above 1/2 exactly where the value exceeds the threshold, and is
    0 for 0 and 1 for infinity.

    Args:
        threshold: above 0; one, or (N,).
    """
    finite = np.isfinite(values)
    bounded = np.where(finite, values, 0.0)
    scores = np.where(finite, bounded / (bounded + threshold), 1.0)
    # Right above the threshold the quotient may round to 1/2.
    return np.where(values > threshold, np.maximum(scores, np.nextafter(0.5, 1)), np.minimum(scores, 0.5))


def values_from_scores(scores: NDArray[np.float64], threshold: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Invert `score`: the suspicion (N,) up to rounding, on the same side of the threshold.

    Infinite where the score is 1.

    Args:
        threshold: that of `score`; one, or (N,).
    """
    with np.errstate(divide="ignore"):
        return np.asarray(threshold * (scores / (1 - scores)))


def _midpoint(low: float, high: float) -> float:
    if np.isfinite(high):
        return float(low + (high - low) / 2)
    # If all finite values are 0, or there is none, any positive threshold works.
    return float(low * (1 + _BEYOND)) or 1.0


def _alternative(counts: NDArray[np.int64], chosen: int, target: float) -> int | None:
    """Return the one of ascending `counts` that is nearest to `chosen` on the other side of `target`."""
    if abs(chosen - target) < 1e-6:
        return None
    others = counts[counts < target][-1:] if chosen > target else counts[counts > target][:1]
    return int(others[0]) if len(others) else None


def jaccard(left: NDArray[np.bool_], right: NDArray[np.bool_]) -> float:
    """Return the Jaccard index of two sets (N,): images in both over images in either, 0 to 1; 1 if both are empty.

    Two random sets that each contain a share s of all images have about s / (2 - s).
    """
    either = int((left | right).sum())
    return int((left & right).sum()) / either if either else 1.0
