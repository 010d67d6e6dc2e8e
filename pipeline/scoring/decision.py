"""Scoring and choosing in sequence: from evidence to the filter's own decision."""

from collections.abc import Mapping
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
class ShareRule:
    """Drop `share` of all images, 0 to 1, divided among the classes as `allocation` says."""

    share: float
    allocation: Allocation = "overall"


@dataclass(frozen=True, kw_only=True)
class FilterDecision:
    """What the filter says of N images, before any person overrides it.

    Attributes:
        values: (N,) suspicion in the scorer's unit.
        thresholds: (N,) what the value of an image must exceed for it to go; one for all images, or
            for all of a class.
        clusters: (N,) numbered from 0 within each class, noise -1; for scorers that find none, 0 for
            what is kept and -1 for what goes.
        share_note: how far a requested share was missed, and why; None if it was met within 0.1
            percentage points or none was requested.
    """

    values: NDArray[np.float64]
    thresholds: NDArray[np.float64]
    clusters: NDArray[np.int32]
    share_note: str | None

    @property
    def is_noise(self) -> NDArray[np.bool_]:
        """(N,) whether the image is to go."""
        return np.asarray(self.values > self.thresholds)

    @property
    def scores(self) -> NDArray[np.float64]:
        """(N,) suspicion from 0 to 1, above 1/2 exactly for what is to go."""
        return score(self.values, self.thresholds)


def decide(evidence: ScorerInputs, scorer: Mapping[str, Any], rule: ShareRule | float) -> FilterDecision:
    """Score all images and choose those to go.

    Args:
        scorer: `name`, a key of `SCORERS`, and that scorer's options.
        rule: a share, or the threshold itself, above 0, in the scorer's unit.
    """
    name, options = split_options(scorer)
    chosen = SCORERS[name]
    values = chosen.values(evidence, **options)
    assert values.shape == evidence.labels.shape, (name, values.shape)
    note = None
    if isinstance(rule, ShareRule):
        found = thresholds_for_share(values, evidence.labels, rule.share, rule.allocation)
        by_label = np.zeros(int(evidence.labels.max()) + 1)
        by_label[list(found)] = [threshold.value for threshold in found.values()]
        thresholds, note = by_label[evidence.labels], _share_note(values, evidence.labels, rule, found)
    else:
        thresholds = np.full(len(values), rule)
    if chosen.clusters is None:
        clusters = -(values > thresholds).astype(np.int32)
    else:
        clusters = chosen.clusters(evidence, thresholds, **options)
    if name == "dbscan":
        values = reconcile_radii(values, thresholds, clusters == -1)
    return FilterDecision(values=values, thresholds=thresholds, clusters=clusters, share_note=note)


def _share_note(
    values: NDArray[np.float64], labels: NDArray[np.int64], rule: ShareRule, found: Mapping[int, Threshold]
) -> str | None:
    n = len(values)
    n_above = sum(int((values[labels == label] > threshold.value).sum()) for label, threshold in found.items())
    achieved = n_above / n
    if abs(achieved - rule.share) <= _SHARE_TOLERANCE:
        return None
    missed = f"{rule.share:.4f} was asked for, {achieved:.4f} is the nearest in reach"
    if rule.allocation != "overall":
        return f"{missed}: the quotas of {len(found)} classes are met to the nearest image or tie in each"
    threshold = next(iter(found.values()))
    if threshold.alternative is None:
        return f"{missed}: no threshold drops more of the others, which the scorer does not tell apart"
    step = abs(threshold.alternative - threshold.n_above)
    if step == 1:
        return f"{missed}: one of {n} images is a share of {1 / n:.4f}"
    return f"{missed}: {step} images are equally suspect, and with them it is {threshold.alternative / n:.4f}"
