"""Nearest neighbors of images whose features come from one network per fold.

Features of two networks differ after alignment, too: images of one fold share a network, and are nearer to each other
than to the rest. So each image is compared with all others by one network, that which did not train on it.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipeline.reduction.neighbors import Neighbors, exact_neighbors, nearest_neighbors

PointsOf = Callable[[int], NDArray[np.float32]]
"""From the number of a network to points (N, d): all images by this network."""


def neighbors_by_network(points_of: PointsOf, folds: NDArray[np.int32], k: int, *, seed: int) -> Neighbors:
    """Return the `k` nearest other images of each image, among all images by the network of its fold.

    Args:
        folds: (N,), 0 to K - 1, each at least once: the network that did not train on the image.
        k, seed: as in `nearest_neighbors`.
    """
    n = len(folds)
    rows, distances = np.empty((n, k), dtype=np.int32), np.empty((n, k), dtype=np.float32)
    searches = []
    for fold in range(folds.max() + 1):
        queries = np.flatnonzero(folds == fold)
        found = nearest_neighbors(points_of(fold), k, seed=seed, queries=queries)
        rows[queries], distances[queries] = found.rows, found.distances
        searches.append(found.search)
    widest = max(searches, key=lambda search: search.get("probes", 0))
    return replace(found, rows=rows, distances=distances, search={**widest, "networks": len(searches)})


def exact_neighbors_by_network(
    points_of: PointsOf, folds: NDArray[np.int32], rows: NDArray[np.int64], k: int
) -> NDArray[np.int64]:
    """Return the exact neighbors (len(rows), k) of each of `rows`, defined as in `neighbors_by_network`."""
    exact = np.empty((len(rows), k), dtype=np.int64)
    for fold in np.unique(folds[rows]).tolist():
        own = folds[rows] == fold
        exact[own] = exact_neighbors(points_of(fold), rows[own], k)
    return exact


def same_fold_share(neighbors: NDArray[np.integer], rows: NDArray[np.int64], folds: NDArray[np.int32]) -> float:
    """Return the share, 0 to 1, of the neighbors (n, k) of `rows` (n,) that are of the same fold; folds (N,)."""
    return float((folds[neighbors] == folds[rows, None]).mean())


def expected_same_fold_share(folds: NDArray[np.int32]) -> float:
    """Return the share of the other images that are of an image's fold (N,), in the mean over images."""
    counts = np.bincount(folds)
    return float((counts * (counts - 1)).sum() / (len(folds) * (len(folds) - 1)))
