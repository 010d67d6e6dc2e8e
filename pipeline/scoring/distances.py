"""Scorers that read distances between features."""

from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from pipeline.scoring.base import ScoredImages, Scorer, ScorerInputs, each_class, neighbor_phrases

# How far an image is from the mean of its class.


def centroid_distances(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,): Euclidean distance of each of points (n, d) from their mean."""
    return np.asarray(np.linalg.norm(points - points.mean(axis=0), axis=1))


def _centroid_scores(evidence: ScorerInputs) -> NDArray[np.float64]:
    """In the unit of the principal components."""
    return each_class(centroid_distances, evidence.labels, evidence.points("components"), each=evidence.each)


def _centroid_reasons(judged: ScoredImages) -> list[str]:
    return [
        f"{value / threshold:.2g} times as far from the mean of its class as the threshold"
        for value, threshold in judged.pairs
    ]


CENTROID_SCORER = Scorer(values=_centroid_scores, phrases=_centroid_reasons, needs=frozenset({"components"}))


# How far an image is from its nearest of the same class (Ramaswamy, Rastogi and Shim, 2000).


def neighbor_distances(points: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """(n,): distance from each of points (n, d) to its `k`-th nearest other; to the farthest if there are fewer.

    A point that is alone has none: NaN.
    """
    n = len(points)
    if n == 1:
        return np.full(1, np.nan)
    # In fifty dimensions trees look at every point, and slowly.
    search = NearestNeighbors(n_neighbors=min(k, n - 1), algorithm="brute").fit(points)
    found: NDArray[np.float64] = search.kneighbors(return_distance=True)[0][:, -1]
    return found


def _knn_distance_scores(evidence: ScorerInputs, *, k: int) -> NDArray[np.float64]:
    """Distance to the `k`-th nearest other of the class, in the unit of the principal components.

    The only image of its class counts as far as the farthest of the others.
    """
    found: NDArray[np.float64] = each_class(
        partial(neighbor_distances, k=k), evidence.labels, evidence.points("components"), each=evidence.each
    )
    farthest = np.nanmax(found) if not np.isnan(found).all() else 0.0
    return np.where(np.isnan(found), farthest, found)


def _knn_distance_reasons(judged: ScoredImages) -> list[str]:
    k = judged.options["k"]
    return [
        f"{value / threshold:.2g} times as far from its {k}-th nearest of the class as the threshold"
        for value, threshold in judged.pairs
    ]


KNN_DISTANCE_SCORER = Scorer(
    values=_knn_distance_scores, phrases=_knn_distance_reasons, needs=frozenset({"components"})
)


# How many of an image's nearest neighbours have another label (Wilson's editing rule, 1972, as a score).


def _knn_agreement_scores(evidence: ScorerInputs, *, k: int) -> NDArray[np.float64]:
    """Share, 0 to 1, of the `k` nearest others by principal components that have another label."""
    assert evidence.neighbours is not None
    nearest = evidence.neighbours[:, :k]
    assert nearest.shape[1] == k, (nearest.shape, k)
    others = evidence.labels[nearest] != evidence.labels[:, None]
    return np.asarray(others.mean(axis=1), dtype=np.float64)


def _knn_agreement_reasons(judged: ScoredImages) -> list[str]:
    neighbours = judged.evidence.neighbours
    assert neighbours is not None
    return neighbor_phrases(neighbours[:, : judged.options["k"]], judged.evidence.labels, judged.names)


KNN_AGREEMENT_SCORER = Scorer(
    values=_knn_agreement_scores, phrases=_knn_agreement_reasons, needs=frozenset({"classes", "neighbours"})
)
