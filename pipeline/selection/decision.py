"""Scoring and choosing in sequence: from evidence to the filter's own decision."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.selection.budgets import Threshold, score, threshold_for_share
from pipeline.selection.dbscan import cluster_by_class, settle
from pipeline.selection.evidence import Evidence
from pipeline.selection.scorers import SCORERS

_SHARE_TOLERANCE = 0.001


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the filter says of N images, before any person overrides it.

    Attributes:
        values: (N,) suspicion in the scorer's unit, which is that of eps.
        clusters: (N,) numbered from 0 within each class, noise -1.
        eps: the radius used.
        share_note: how far a requested share was missed, and why; None if it was met within 0.1
            percentage points or none was requested.
    """

    values: NDArray[np.float64]
    clusters: NDArray[np.int32]
    eps: float
    share_note: str | None

    @property
    def is_noise(self) -> NDArray[np.bool_]:
        """(N,) whether the image is to go."""
        noise: NDArray[np.bool_] = self.clusters == -1
        return noise

    @property
    def scores(self) -> NDArray[np.float64]:
        """(N,) suspicion from 0 to 1, above 1/2 exactly for noise."""
        return score(self.values, self.eps)


def decide(
    evidence: Evidence, *, method: str, min_samples: int, eps: float | None, drop_share: float | None
) -> Decision:
    """Score all images, choose the radius, and let DBSCAN say which are noise at it.

    Args:
        method: a key of `SCORERS`.
        min_samples: DBSCAN's; no class has fewer images.
        eps: the radius; None if `drop_share` is given.
        drop_share: share of all images to drop; None if `eps` is given.
    """
    values = SCORERS[method](evidence, min_samples=min_samples)
    note = None
    if eps is None:
        assert drop_share is not None
        threshold = threshold_for_share(values, drop_share)
        eps, note = threshold.value, _share_note(drop_share, threshold, len(values))
    clusters = cluster_by_class(evidence, eps, min_samples=min_samples)
    return Decision(values=settle(values, eps, clusters == -1), clusters=clusters, eps=eps, share_note=note)


def _share_note(share: float, threshold: Threshold, n: int) -> str | None:
    achieved = threshold.n_above / n
    if abs(achieved - share) <= _SHARE_TOLERANCE:
        return None
    missed = f"{share:.4f} was asked for, {achieved:.4f} is the nearest in reach"
    if threshold.alternative is None:
        return f"{missed}: the other images lie so close together that no eps makes them noise"
    step = abs(threshold.alternative - threshold.n_above)
    if step == 1:
        return f"{missed}: one of {n} images is a share of {1 / n:.4f}"
    return f"{missed}: {step} images become noise at the same eps, and with them it is {threshold.alternative / n:.4f}"
