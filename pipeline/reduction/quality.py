"""How much of the neighbourhood in feature space a map keeps."""

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors


def quality_sample(n: int, size: int = 2000) -> NDArray[np.int64]:
    """At most `size` rows out of `n`, drawn without repeats by a fixed seed, in ascending order."""
    if n <= size:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, size=size, replace=False))


def exact_neighbours(points: NDArray[np.float32], rows: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """(len(rows), k): the `k` nearest others of each of `rows` among points (N, d), by Euclidean distance.

    By brute force; k < N.
    """
    assert k < len(points), (k, len(points))
    search = NearestNeighbors(n_neighbors=k + 1, algorithm="brute").fit(points)
    found = search.kneighbors(points[rows], return_distance=False)
    # A point comes first among its own neighbours unless it has duplicates; then it may come later
    # or not at all, and the farthest of the k + 1 goes instead.
    is_self = found == rows[:, None]
    order = np.argsort(is_self, axis=1, kind="stable")
    others: NDArray[np.int64] = np.take_along_axis(found, order, axis=1)[:, :k]
    return others


def neighbour_recall(neighbours: NDArray[np.integer], reference: NDArray[np.integer]) -> float:
    """Mean share, 0 to 1, of each row of `reference` (n, k) that is in the same row of `neighbours` (n, k).

    With `reference` from feature space and `neighbours` from the map it is the neighbour
    preservation of Lee and Verleysen (2009, doi:10.1016/j.neucom.2008.12.017), their Q_NX(k).
    """
    assert neighbours.shape == reference.shape, (neighbours.shape, reference.shape)
    return float((neighbours[:, :, None] == reference[:, None, :]).any(axis=1).mean())


def knn_label_accuracy(neighbours: NDArray[np.integer], rows: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """Share, 0 to 1, of `rows` whose label wins the vote of their neighbours (n, k).

    Args:
        labels: (N,) of all points; the smaller label wins a draw.
    """
    votes = labels[neighbours]
    winners = [np.bincount(row).argmax() for row in votes]
    return float((np.array(winners) == labels[rows]).mean())
