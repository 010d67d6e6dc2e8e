"""Decide which images to drop, and which near duplicates are redundant."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.density import reconcile_radii
from pipeline.scoring.registry import SCORERS, split_options
from pipeline.scoring.thresholds import Allocation, Threshold, score, thresholds_for_share

_SHARE_TOLERANCE = 0.001


@dataclass(frozen=True, kw_only=True)
class DropFraction:
    """Drop `fraction` of all images, 0 to 1, divided among the classes as `allocation` says."""

    fraction: float
    allocation: Allocation = "overall"


@dataclass(frozen=True, kw_only=True)
class FilterDecision:
    """The filter's decision on N images, before manual overrides.

    Attributes:
        values: (N,) suspicion in the scorer's unit.
        thresholds: (N,); an image is dropped if its value exceeds its threshold. One number for all images,
            or one per class.
        clusters: (N,) numbered from 0 within each class, noise -1; for scorers that find no clusters, 0 for
            kept images and -1 for dropped ones.
        share_note: how far a requested share was missed, and why; None if it was met within 0.1
            percentage points or none was requested.
    """

    values: NDArray[np.float64]
    thresholds: NDArray[np.float64]
    clusters: NDArray[np.int32]
    share_note: str | None

    @property
    def is_noise(self) -> NDArray[np.bool_]:
        """(N,) whether the image is dropped."""
        return np.asarray(self.values > self.thresholds)

    @property
    def scores(self) -> NDArray[np.float64]:
        """(N,) suspicion from 0 to 1, above 1/2 exactly for dropped images."""
        return score(self.values, self.thresholds)


def decide(inputs: ScorerInputs, scorer: Mapping[str, Any], rule: DropFraction | float) -> FilterDecision:
    """Score all images and choose those to drop.

    Args:
        scorer: `name`, a key of `SCORERS`, and that scorer's options.
        rule: a fraction to drop, or the threshold itself, above 0, in the scorer's unit.
    """
    name, options = split_options(scorer)
    method = SCORERS[name]
    found = None
    if method.values_and_clusters is None:
        values = method.values(inputs, **options)
    else:
        values, found = method.values_and_clusters(inputs, **options)
    assert values.shape == inputs.labels.shape, (name, values.shape)
    note = None
    if isinstance(rule, DropFraction):
        by_class = thresholds_for_share(values, inputs.labels, rule.fraction, rule.allocation)
        by_label = np.zeros(int(inputs.labels.max()) + 1)
        by_label[list(by_class)] = [threshold.value for threshold in by_class.values()]
        thresholds, note = by_label[inputs.labels], _share_note(values, inputs.labels, rule, by_class)
    else:
        thresholds = np.full(len(values), rule)
    if found is not None:
        clusters = found
    elif method.clusters is not None:
        clusters = method.clusters(inputs, thresholds, **options)
    else:
        clusters = -(values > thresholds).astype(np.int32)
    if name == "dbscan":
        values = reconcile_radii(values, thresholds, clusters == -1)
    return FilterDecision(values=values, thresholds=thresholds, clusters=clusters, share_note=note)


def _share_note(
    values: NDArray[np.float64], labels: NDArray[np.int64], rule: DropFraction, by_class: Mapping[int, Threshold]
) -> str | None:
    n = len(values)
    n_above = sum(int((values[labels == label] > threshold.value).sum()) for label, threshold in by_class.items())
    achieved = n_above / n
    if abs(achieved - rule.fraction) <= _SHARE_TOLERANCE:
        return None
    missed = f"{rule.fraction:.4f} was requested, {achieved:.4f} is the nearest possible share"
    if rule.allocation != "overall":
        return f"{missed}: the quotas of {len(by_class)} classes are met to the nearest image or tie in each"
    threshold = next(iter(by_class.values()))
    if threshold.alternative is None and achieved > rule.fraction:
        return f"{missed}: {n_above} images are infinitely suspect, and no threshold keeps them"
    if threshold.alternative is None:
        return f"{missed}: no threshold drops more of the other images, which have equal values"
    step = abs(threshold.alternative - threshold.n_above)
    if step == 1:
        return f"{missed}: one of {n} images is a share of {1 / n:.4f}"
    return f"{missed}: {step} images are equally suspect, and with them it is {threshold.alternative / n:.4f}"


def redundant_rows(
    pairs: NDArray[np.int64],
    keep: NDArray[np.bool_],
    scores: NDArray[np.float64],
    *,
    decided: Collection[int] = (),
    kept_by_hand: Collection[int] = (),
) -> dict[int, int]:
    """Return the training images to drop as near duplicates: row -> the row that it nearly equals.

    An image is dropped if it nearly equals a test image. The others are taken in the order of their scores, the least
    suspect first, and dropped if they nearly equal a training image that is kept. So of two near duplicates without a
    decision by hand, at most one is kept. Images that the filter drops are not considered.

    Args:
        pairs: (P, 2) rows of near duplicates, the most similar first; rows from N on are test images.
        keep: (N,) the filter's decision.
        scores: (N,) of the filter; of a pair the less suspect image stays.
        decided: rows with a decision by hand.
        kept_by_hand: those of them that are kept.
    """
    partners: dict[int, list[int]] = {}
    for first, second in pairs.tolist():
        partners.setdefault(first, []).append(second)
        partners.setdefault(second, []).append(first)
    n = len(keep)
    undecided = [row for row in partners if row < n and keep[row] and row not in decided]
    kept = set(kept_by_hand)
    redundant: dict[int, int] = {}
    for row in sorted(undecided, key=lambda row: (scores[row], row)):
        # The partners are in the order of the pairs, the most similar first.
        duplicate_of = next((other for other in partners[row] if other >= n), None)
        if duplicate_of is None:
            duplicate_of = next((other for other in partners[row] if other in kept), None)
        if duplicate_of is None:
            kept.add(row)
        else:
            redundant[row] = duplicate_of
    return redundant
