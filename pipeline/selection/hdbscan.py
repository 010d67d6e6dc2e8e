"""HDBSCAN per class (Campello, Moulavi and Sander, 2013), by scikit-learn."""

from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import HDBSCAN

from pipeline.selection.classes import each_class
from pipeline.selection.dbscan import core_distances
from pipeline.selection.evidence import PLACES, Evidence, Judged, Scorer, Space


def suspicion(points: NDArray[np.float64], min_cluster_size: int, min_samples: int) -> NDArray[np.float64]:
    """(n,): 1 - strength of membership for points (n, d) in a cluster, 1 to 2 for noise.

    HDBSCAN gives noise no order. Here the noise point with the largest core distance has 2, and the
    others less in proportion. A threshold of 1 is HDBSCAN's own decision.
    """
    found = _fit(points, min_cluster_size, min_samples)
    core = core_distances(points, min_samples)
    isolation = core / core.max() if core.max() > 0 else np.ones(len(points))
    noise = found.labels_ == -1
    # Above 1 even for the least isolated noise, which may have duplicates at distance 0.
    return np.where(noise, np.maximum(1 + isolation, np.nextafter(1, 2)), 1 - found.probabilities_)


def _fit(points: NDArray[np.float64], min_cluster_size: int, min_samples: int) -> HDBSCAN:
    # A class that is one cluster is the usual case; without allow_single_cluster it would be split or all noise.
    return HDBSCAN(
        min_cluster_size=min_cluster_size, min_samples=min_samples, allow_single_cluster=True, copy=True
    ).fit(points)


def _values(evidence: Evidence, *, space: Space, min_cluster_size: int, min_samples: int) -> NDArray[np.float64]:
    task = partial(suspicion, min_cluster_size=min_cluster_size, min_samples=min_samples)
    return each_class(task, evidence.labels, evidence.points(space), each=evidence.each)


def _clusters(
    evidence: Evidence,
    thresholds: NDArray[np.float64],  # noqa: ARG001
    *,
    space: Space,
    min_cluster_size: int,
    min_samples: int,
) -> NDArray[np.int32]:
    task = partial(_labels, min_cluster_size=min_cluster_size, min_samples=min_samples)
    return each_class(task, evidence.labels, evidence.points(space), each=evidence.each)


def _labels(points: NDArray[np.float64], *, min_cluster_size: int, min_samples: int) -> NDArray[np.int32]:
    return np.asarray(_fit(points, min_cluster_size, min_samples).labels_, dtype=np.int32)


def _phrases(judged: Judged) -> list[str]:
    where, least = PLACES[judged.options["space"]], judged.options["min_cluster_size"]
    return [
        f"in no cluster of {least} or more {where}"
        if value > 1
        else f"in a cluster of its class {where} with strength {1 - value:.2f}"
        for value in judged.values.tolist()
    ]


SCORER = Scorer(
    values=_values, phrases=_phrases, clusters=_clusters, least_per_class=("min_cluster_size", "min_samples")
)
