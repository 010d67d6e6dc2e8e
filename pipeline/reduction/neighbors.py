"""Nearest neighbors, and how well an embedding keeps them."""

from collections.abc import Iterator
from dataclasses import dataclass

import faiss
import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

# How much of the neighbourhood in feature space a map keeps.


def quality_sample(n: int, size: int = 2000) -> NDArray[np.int64]:
    """At most `size` rows out of `n`, drawn without repeats by a fixed seed, in ascending order."""
    if n <= size:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, size=size, replace=False))


def exact_neighbors(points: NDArray[np.float32], rows: NDArray[np.int64], k: int) -> NDArray[np.int64]:
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


def neighbor_recall(neighbors: NDArray[np.integer], reference: NDArray[np.integer]) -> float:
    """Mean share, 0 to 1, of each row of `reference` (n, k) that is in the same row of `neighbours` (n, k).

    With `reference` from feature space and `neighbours` from the map it is the neighbour
    preservation of Lee and Verleysen (2009, doi:10.1016/j.neucom.2008.12.017), their Q_NX(k).
    """
    assert neighbors.shape == reference.shape, (neighbors.shape, reference.shape)
    return float((neighbors[:, :, None] == reference[:, None, :]).any(axis=1).mean())


def knn_label_accuracy(neighbors: NDArray[np.integer], rows: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """Share, 0 to 1, of `rows` whose label wins the vote of their neighbours (n, k).

    Args:
        labels: (N,) of all points; the smaller label wins a draw.
    """
    votes = labels[neighbors]
    winners = [np.bincount(row).argmax() for row in votes]
    return float((np.array(winners) == labels[rows]).mean())


# Nearest neighbours by Euclidean distance, exact or by an inverted file (faiss).


_MAX_EXACT_PAIRS = 100_000**2
_QUERIES = 8192
_MAX_BYTES = 2**26
# faiss computes |x|^2 + |y|^2 - 2xy in float32, which can confuse the last few; their true distances decide.
_SPARE = 8
_TUNING_SAMPLE = 500
_MIN_RECALL = 0.99
_MIN_PROBES = 16
# Of faiss' 256 these many points per list train it in a quarter of the time, at the same recall.
_TRAINING_POINTS_PER_LIST = 64

RowsAndDistances = tuple[NDArray[np.int64], NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Neighbors:
    """The k nearest others of each of N points, nearest first; of equally near ones, lower rows first.

    Attributes:
        rows: (N, k) int32.
        distances: (N, k) float32, Euclidean, in the unit of the points.
        search: how they were found: `method`, and for `ivf` its `lists` and `probes`.
    """

    rows: NDArray[np.int32]
    distances: NDArray[np.float32]
    search: dict[str, str | int]


def nearest_neighbors(points: NDArray[np.float32], k: int, *, seed: int) -> Neighbors:
    """The `k` nearest others of each of points (N, d); a point is never its own neighbour, duplicates included.

    Exact up to 100,000 points, see `NeighborSearch`.

    Args:
        k: at most N - 1.
        seed: of the inverted file's k-means.
    """
    n = len(points)
    assert 1 <= k < n, (k, n)
    search = NeighborSearch(points, queries=n, seed=seed)
    rows = np.empty((n, k), dtype=np.int32)
    distances = np.empty((n, k), dtype=np.float32)
    for block in _blocks(n):
        found, far = search.query(points[block], k + 1)
        # A point comes first among its own neighbours unless it has duplicates; then it may come later
        # or not at all, and the farthest goes instead.
        is_self = found == np.arange(block.start, block.start + len(found))[:, None]
        order = np.argsort(is_self, axis=1, kind="stable")[:, :k]
        rows[block] = np.take_along_axis(found, order, axis=1)
        distances[block] = np.take_along_axis(far, order, axis=1)
    return Neighbors(rows=rows, distances=distances, search=search.settings)


class NeighborSearch:
    """Finds the points (N, d) that are nearest to others.

    By comparing all where that is at most 1e10 pairs. Above, in an inverted file (Jégou, Douze and
    Schmid, 2011, doi:10.1109/TPAMI.2010.57, without their compression): k-means puts the points into
    4 sqrt(N) lists, and a query looks through the nearest ones only. How many, doubles until at
    least 99 % of the neighbours of a fixed sample are found.
    """

    def __init__(self, points: NDArray[np.float32], *, queries: int, seed: int) -> None:
        self._points = points
        self.settings: dict[str, str | int] = {"method": "exact"}
        if len(points) * queries > _MAX_EXACT_PAIRS:
            self._lists = _inverted_file(points, seed)
            self._lists.nprobe = self._probes()
            self.settings = {"method": "ivf", "lists": self._lists.nlist, "probes": self._lists.nprobe}

    def query(self, queries: NDArray[np.float32], k: int) -> RowsAndDistances:
        """Rows (n, k) int64 of the points nearest to queries (n, d), and distances (n, k); k is at most N."""
        queries, wanted = np.ascontiguousarray(queries), min(k + _SPARE, len(self._points))
        if self.settings["method"] == "exact":
            return self._nearest(queries, self._exact(queries, wanted), k)
        found = self._lists.search(queries, wanted)[1]
        short = (found < 0).any(axis=1)  # the lists that were looked through hold too few
        if short.any():
            found[short] = self._exact(queries[short], wanted)
        return self._nearest(queries, found, k)

    def _exact(self, queries: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        found: NDArray[np.int64] = faiss.knn(queries, self._points, k)[1]
        return found

    def _nearest(self, queries: NDArray[np.float32], candidates: NDArray[np.int64], k: int) -> RowsAndDistances:
        candidates = np.sort(candidates, axis=1)
        distances = np.empty(candidates.shape)
        rows = max(1, _MAX_BYTES // (4 * candidates.shape[1] * queries.shape[1]))
        for start in range(0, len(queries), rows):
            block = slice(start, start + rows)
            differences = self._points[candidates[block]] - queries[block, None]
            np.sqrt(np.einsum("nkd,nkd->nk", differences, differences, dtype=np.float64), out=distances[block])
        order = np.argsort(distances, axis=1, kind="stable")[:, :k]
        nearest = np.take_along_axis(distances, order, axis=1)
        return np.take_along_axis(candidates, order, axis=1), nearest.astype(np.float32)

    def _probes(self) -> int:
        rows = quality_sample(len(self._points), _TUNING_SAMPLE)
        queries = np.ascontiguousarray(self._points[rows])
        # Each finds itself first, which is no merit.
        reference = self._exact(queries, 11)[:, 1:]
        probes = _MIN_PROBES
        while probes < self._lists.nlist:
            self._lists.nprobe = probes
            if neighbor_recall(self._lists.search(queries, 11)[1][:, 1:], reference) >= _MIN_RECALL:
                break
            probes *= 2
        return min(probes, self._lists.nlist)


def _inverted_file(points: NDArray[np.float32], seed: int) -> faiss.IndexIVFFlat:
    lists = faiss.IndexIVFFlat(faiss.IndexFlatL2(points.shape[1]), points.shape[1], round(4 * len(points) ** 0.5))
    lists.cp.seed = seed % 2**31  # a C int
    lists.cp.max_points_per_centroid = _TRAINING_POINTS_PER_LIST
    lists.cp.min_points_per_centroid = 1  # fewer than 39 would be complained of on the terminal
    lists.train(points)
    lists.add(points)
    return lists


def _blocks(n: int) -> Iterator[slice]:
    return (slice(start, start + _QUERIES) for start in range(0, n, _QUERIES))
