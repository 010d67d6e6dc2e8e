"""Scorers by distance between features: to the class mean, and to nearest neighbors."""

from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from pipeline.scoring.base import (
    ScoredImages,
    Scorer,
    ScorerInputs,
    each_class,
    format_distinct,
)
from pipeline.scoring.votes import neighbor_phrases


def centroid_distances(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Euclidean distance (n,) of each of points (n, d) from their mean."""
    return np.asarray(np.linalg.norm(points - points.mean(axis=0), axis=1))


def _centroid_values(inputs: ScorerInputs) -> NDArray[np.float64]:
    """Return the distance (N,) of each image from the mean of its class, in the unit of the components."""
    return each_class(centroid_distances, inputs.labels, inputs.points("components"), map_fn=inputs.map_fn)


def _centroid_reasons(scored: ScoredImages) -> list[str]:
    return [f"{times} times as far from the mean of its class as the threshold" for times in _times(scored)]


def _times(scored: ScoredImages) -> list[str]:
    """Return each value over its threshold, with as many digits as show on which side of 1 it is."""
    return [format_distinct(value / threshold, 1)[0] for value, threshold in scored.pairs]


CENTROID_SCORER = Scorer(values=_centroid_values, reasons=_centroid_reasons, needs=frozenset({"components"}))


def neighbor_distances(points: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Return the distance (n,) from each of points (n, d) to its `k`-th nearest other point.

    With fewer than `k` other points it is the distance to the farthest. A single point has NaN.
    """
    n = len(points)
    if n == 1:
        return np.full(1, np.nan)
    # In fifty dimensions a tree visits every point, and is slower than brute force.
    search = NearestNeighbors(n_neighbors=min(k, n - 1), algorithm="brute").fit(points)
    distances: NDArray[np.float64] = search.kneighbors(return_distance=True)[0][:, -1]
    return distances


def _knn_distance_values(inputs: ScorerInputs, *, k: int) -> NDArray[np.float64]:
    """Return the distance (N,) to the `k`-th nearest other image of the class, in the unit of the components.

    Method of Ramaswamy, Rastogi and Shim (2000). The only image of a class gets the largest distance of all.
    """
    distances: NDArray[np.float64] = each_class(
        partial(neighbor_distances, k=k), inputs.labels, inputs.points("components"), map_fn=inputs.map_fn
    )
    farthest = np.nanmax(distances) if not np.isnan(distances).all() else 0.0
    return np.where(np.isnan(distances), farthest, distances)


def _knn_distance_reasons(scored: ScoredImages) -> list[str]:
    k = scored.options["k"]
    return [f"{times} times as far from its {k}-th nearest of the class as the threshold" for times in _times(scored)]


KNN_DISTANCE_SCORER = Scorer(
    values=_knn_distance_values, reasons=_knn_distance_reasons, needs=frozenset({"components"})
)


def _knn_agreement_values(inputs: ScorerInputs, *, k: int) -> NDArray[np.float64]:
    """Return the share (N,), 0 to 1, of the `k` nearest neighbors by components that have another label.

    Wilson's editing rule (1972) as a score.
    """
    assert inputs.neighbors is not None
    nearest = inputs.neighbors[:, :k]
    assert nearest.shape[1] == k, (nearest.shape, k)
    others = inputs.labels[nearest] != inputs.labels[:, None]
    return np.asarray(others.mean(axis=1), dtype=np.float64)


def _knn_agreement_reasons(scored: ScoredImages) -> list[str]:
    neighbors = scored.inputs.neighbors
    assert neighbors is not None
    k, labels = scored.options["k"], scored.inputs.labels
    votes = neighbor_phrases(neighbors[:, :k], labels, scored.class_names)
    n_same = (labels[neighbors[:, :k]] == labels[:, None]).sum(axis=1).tolist()
    phrases = []
    for vote, same, dropped in zip(votes, n_same, scored.dropped, strict=True):
        if not dropped:
            phrases.append(f"{same} of {k} nearest neighbors share its label")
        elif vote.endswith("share its label"):
            phrases.append(f"{k - same} of {k} nearest neighbors have another label")
        else:
            phrases.append(vote)
    return phrases


KNN_AGREEMENT_SCORER = Scorer(
    values=_knn_agreement_values, reasons=_knn_agreement_reasons, needs=frozenset({"classes", "neighbors"})
)
