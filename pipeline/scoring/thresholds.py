"""Thresholds that drop a given share, and how stable the choice is."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# How many images go: thresholds on suspicion, whatever scorer it came from.


Allocation = Literal["overall", "per_class", "balanced"]

# Values closer than this, relative to their size, are one step: no threshold can tell them apart.
_TIED = 1e-9
# How far beyond the largest finite value, relative to it, a threshold that drops none of them stands.
_BEYOND = 1e-6


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A value that images must exceed to be dropped, and which counts were in reach.

    Attributes:
        value: above 0, in the scorer's unit, with a distance from every image's value.
        n_above: images that exceed it.
        alternative: the next count in reach on the other side of the one that was asked for; None
            if that one is met exactly or lies beyond all that can be reached.
    """

    value: float
    n_above: int
    alternative: int | None


def threshold_for_share(values: NDArray[np.float64], share: float) -> Threshold:
    """The threshold above which as near to `share` of the values as ties allow lie.

    It stands midway between two neighbouring values, so that rounding moves no image across.
    Of two counts equally near it takes the smaller.

    Args:
        values: (N,) suspicion, at least 0, possibly infinite; N >= 1.
        share: 0 to 1.
    """
    assert len(values) > 0
    ordered = np.sort(values)
    lower = np.concatenate([[0.0], ordered])
    upper = np.concatenate([ordered, [np.inf]])
    # Gap i lies below the i-th smallest value: a threshold in it has N - i values above.
    gaps = np.flatnonzero((lower < upper * (1 - _TIED)) & np.isfinite(lower))
    counts = len(values) - gaps[::-1]
    target = share * len(values)
    # A hair's tolerance, so that 0.1 x 30 = 3.0000000000000004 asks for 3.
    best = int(np.argmin(np.round(np.abs(counts - target), 6)))
    n_above = int(counts[best])
    return Threshold(
        value=_inside(lower[len(values) - n_above], upper[len(values) - n_above]),
        n_above=n_above,
        alternative=_across(counts, n_above, target),
    )


def thresholds_for_share(
    values: NDArray[np.float64], labels: NDArray[np.int64], share: float, allocation: Allocation
) -> dict[int, Threshold]:
    """Class -> the threshold that drops its part of `share` of all images.

    Args:
        values: (N,) suspicion, as in `threshold_for_share`.
        labels: (N,) classes.
        allocation: `overall`: one threshold, classes lose what lies above it. `per_class`: each class
            loses the same share, to the nearest image. `balanced`: what is left is as even over the
            classes as their sizes allow, so that large classes lose more.
    """
    if allocation == "overall":
        threshold = threshold_for_share(values, share)
        return {int(label): threshold for label in np.unique(labels)}
    classes, counts = np.unique(labels, return_counts=True)
    total = round(share * len(labels))
    dropped = _apportioned(counts, total) if allocation == "per_class" else counts - _even(counts, len(labels) - total)
    return {
        int(label): threshold_for_share(values[labels == label], n / count)
        for label, n, count in zip(classes, dropped.tolist(), counts.tolist(), strict=True)
    }


def _apportioned(counts: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """`total` divided in proportion to `counts`, in whole numbers: by largest remainders, then by the order of classes.

    Rounding each class alone would drop nothing of a thousand classes of eight at a share of 6 %.
    """
    exact = counts * (total / counts.sum())
    parts: NDArray[np.int64] = np.floor(exact + 1e-9).astype(np.int64)
    remainders = np.argsort(parts - exact, kind="stable")
    parts[remainders[: total - parts.sum()]] += 1
    return parts


def _even(counts: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """How many of each class's `counts` to keep so that `total` of all are, and the largest of them is least."""
    order = np.argsort(counts, kind="stable")
    kept = np.empty_like(counts)
    for done, index in enumerate(order):
        # What the smaller classes cannot give, the larger ones share.
        kept[index] = min(counts[index], total // (len(counts) - done))
        total -= kept[index]
    return kept


def shares_above(values: NDArray[np.float64], thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of values (N,), 0 to 1, that exceed each of thresholds (t,)."""
    below = np.searchsorted(np.sort(values), thresholds, side="right")
    return (len(values) - below) / len(values)


def curve_thresholds(values: NDArray[np.float64], n: int = 200) -> NDArray[np.float64]:
    """`n` thresholds in equal ratios, from where nearly all of values (N,) exceed them to where none does.

    Empty if no value is both positive and finite.
    """
    inner = values[(values > 0) & np.isfinite(values)]
    if not len(inner):
        return np.empty(0)
    return np.geomspace(np.quantile(inner, 0.01), inner.max() * (1 + _BEYOND), n)


def score(values: NDArray[np.float64], threshold: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Suspicion (N,) brought to [0, 1]: v / (v + threshold).

    Rises with the value; above 1/2 exactly where the value exceeds the threshold; 0 for 0 and 1 for
    infinity.

    Args:
        threshold: above 0; one, or (N,).
    """
    finite = np.isfinite(values)
    bounded = np.where(finite, values, 0.0)
    found = np.where(finite, bounded / (bounded + threshold), 1.0)
    # Right above the threshold the quotient may round to 1/2.
    return np.where(values > threshold, np.maximum(found, np.nextafter(0.5, 1)), np.minimum(found, 0.5))


def suspicion_from_score(scores: NDArray[np.float64], threshold: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """The suspicion (N,) that `score` brought to `scores` (N,), up to rounding and on the same side of the threshold.

    Infinite where the score is 1.

    Args:
        threshold: that of `score`; one, or (N,).
    """
    rest = 1 - scores
    with np.errstate(divide="ignore"):
        return np.asarray(threshold * (scores / rest))


def _inside(low: float, high: float) -> float:
    if np.isfinite(high):
        return float(low + (high - low) / 2)
    # If all finite values are 0, or there is none, any positive threshold does.
    return float(low * (1 + _BEYOND)) or 1.0


def _across(counts: NDArray[np.int64], chosen: int, target: float) -> int | None:
    """Of ascending `counts`, the one nearest to `chosen` on the other side of `target`."""
    if abs(chosen - target) < 1e-6:
        return None
    others = counts[counts < target][-1:] if chosen > target else counts[counts > target][:1]
    return int(others[0]) if len(others) else None


# How much two filters agree.


def jaccard(left: NDArray[np.bool_], right: NDArray[np.bool_]) -> float:
    """Images in both sets (N,) over images in either, 0 to 1; 1 if both are empty.

    Two random sets that hold a share s of all images each have about s / (2 - s).
    """
    either = int((left | right).sum())
    return int((left & right).sum()) / either if either else 1.0
