"""Nearest neighbors by Euclidean distance, exact or by an inverted file (faiss), and metrics of their preservation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import faiss
import numpy as np
from numpy.typing import NDArray

_MAX_EXACT_PAIRS = 100_000**2
_QUERIES = 8192
_MAX_BYTES = 2**26
# faiss computes |x|^2 + |y|^2 - 2xy in float32, which can swap the last few; exact distances order the candidates.
_SPARE = 8
_TUNING_SAMPLE = 500
_MIN_RECALL = 0.99
_MIN_PROBES = 16
# Instead of faiss' 256: this number of points per list trains it in a quarter of the time, at the same recall.
_TRAINING_POINTS_PER_LIST = 64

RowsAndDistances = tuple[NDArray[np.int64], NDArray[np.float32]]

PointsOf = Callable[[int], NDArray[np.float32]]
"""Function from the number of a network to points (N, d): all images by this network."""


def quality_sample(n: int, size: int = 2000) -> NDArray[np.int64]:
    """Return at most `size` rows out of `n`, sampled without replacement by a fixed seed, ascending."""
    if n <= size:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).choice(n, size=size, replace=False))


def exact_neighbors(points: NDArray[np.float32], rows: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Return the `k` nearest other points (len(rows), k) of each of `rows` among points (N, d), by brute force.

    Args:
        k: at most N - 1.
    """
    assert k < len(points), (k, len(points))
    from sklearn.neighbors import NearestNeighbors  # a second to import, which searches by faiss do not need

    search = NearestNeighbors(n_neighbors=k + 1, algorithm="brute").fit(points)
    nearest = search.kneighbors(points[rows], return_distance=False)
    others: NDArray[np.int64] = np.take_along_axis(nearest, _columns_of_others(nearest, rows), axis=1)
    return others


def _columns_of_others(nearest: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the columns (n, k) of the neighbors (n, k + 1) of points `rows` (n,) that are not the point itself.

    A point comes first among its own neighbors unless it has duplicates. Then it may come later or not at all, and the
    farthest neighbor is removed instead.
    """
    return np.argsort(nearest == rows[:, None], axis=1, kind="stable")[:, :-1]


def neighbor_recall(neighbors: NDArray[np.integer], reference: NDArray[np.integer]) -> float:
    """Return the mean share, 0 to 1, of each row of `reference` (n, k) that is in the same row of `neighbors` (n, k).

    With `reference` from the feature space and `neighbors` from the embedding it is the neighbor preservation Q_NX(k)
    of Lee and Verleysen (2009, doi:10.1016/j.neucom.2008.12.017).
    """
    assert neighbors.shape == reference.shape, (neighbors.shape, reference.shape)
    return float((neighbors[:, :, None] == reference[:, None, :]).any(axis=1).mean())


def knn_label_accuracy(neighbors: NDArray[np.integer], rows: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """Return the share, 0 to 1, of `rows` whose label wins the vote of their neighbors (n, k).

    Args:
        labels: (N,) of all points; the smaller label wins a tie.
    """
    votes = labels[neighbors]
    winners = [np.bincount(row).argmax() for row in votes]
    return float((np.array(winners) == labels[rows]).mean())


@dataclass(frozen=True, kw_only=True)
class Neighbors:
    """The k nearest other points of each of N points, nearest first; ties in the order of rows.

    Attributes:
        rows: (N, k) int32.
        distances: (N, k) float32, Euclidean, in the unit of the points.
        search: the search's `method`, and for `ivf` its `lists` and `probes`.
    """

    rows: NDArray[np.int32]
    distances: NDArray[np.float32]
    search: dict[str, str | int]


def nearest_neighbors(
    points: NDArray[np.float32],
    k: int,
    *,
    seed: int,
    queries: NDArray[np.int64] | None = None,
    report: Callable[[int], None] = lambda _: None,
) -> Neighbors:
    """Return the `k` nearest other points of each of points (N, d); a point is never its own neighbor.

    Exact up to 100,000 points, see `NeighborSearch`.

    Args:
        k: at most N - 1.
        seed: of the inverted file's k-means.
        queries: (n,) rows whose neighbors to return; None for all.
        report: called with the number of queries answered since its last call.
    """
    queries = np.arange(len(points)) if queries is None else queries
    n = len(queries)
    assert 1 <= k < len(points), (k, len(points))
    search = NeighborSearch(points, queries=n, seed=seed)
    rows = np.empty((n, k), dtype=np.int32)
    distances = np.empty((n, k), dtype=np.float32)
    for block in _blocks(n):
        nearest, nearest_distances = search.query(points[queries[block]], k + 1)
        columns = _columns_of_others(nearest, queries[block])
        rows[block] = np.take_along_axis(nearest, columns, axis=1)
        distances[block] = np.take_along_axis(nearest_distances, columns, axis=1)
        report(len(nearest))
    return Neighbors(rows=rows, distances=distances, search=search.settings)


class NeighborSearch:
    """Find the points (N, d) that are nearest to query points.

    Up to 1e10 pairs the search compares all of them. Above, it uses an inverted file (Jégou, Douze and Schmid, 2011,
    doi:10.1109/TPAMI.2010.57, without their compression): k-means assigns the points to 4 sqrt(N) lists, and a query
    searches only the nearest lists. Their number doubles until the search finds at least 99 % of the neighbors of a
    fixed sample.

    Args:
        queries: number of query points to expect.
        seed: of the inverted file's k-means.
    """

    def __init__(self, points: NDArray[np.float32], *, queries: int, seed: int) -> None:
        self._points = points
        self.settings: dict[str, str | int] = {"method": "exact"}
        if len(points) * queries > _MAX_EXACT_PAIRS:
            self._lists = _inverted_file(points, seed)
            self._lists.nprobe = self._probes()
            self.settings = {"method": "ivf", "lists": self._lists.nlist, "probes": self._lists.nprobe}

    def query(self, queries: NDArray[np.float32], k: int) -> RowsAndDistances:
        """Return rows (n, k) int64 of the points nearest to queries (n, d), and distances (n, k); k is at most N."""
        queries, n_candidates = np.ascontiguousarray(queries), min(k + _SPARE, len(self._points))
        if self.settings["method"] == "exact":
            return self._nearest(queries, self._exact(queries, n_candidates), k)
        candidates = self._lists.search(queries, n_candidates)[1]
        short = (candidates < 0).any(axis=1)  # the searched lists hold too few points
        if short.any():
            candidates[short] = self._exact(queries[short], n_candidates)
        return self._nearest(queries, candidates, k)

    def _exact(self, queries: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        rows: NDArray[np.int64] = faiss.knn(queries, self._points, k)[1]
        return rows

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
        # The first neighbor of each point is the point itself.
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
    lists.cp.min_points_per_centroid = 1  # faiss would warn on the terminal about fewer than 39
    lists.train(points)
    lists.add(points)
    return lists


def _blocks(n: int) -> Iterator[slice]:
    return (slice(start, start + _QUERIES) for start in range(0, n, _QUERIES))


def neighbors_by_network(points_of: PointsOf, folds: NDArray[np.int32], k: int, *, seed: int) -> Neighbors:
    """Return the `k` nearest other images of each image, among all images by the network of its fold.

    Features of two networks differ even after alignment. If each image had the features of its own network, images of
    one fold would be nearer to each other than to the rest. So each image is compared with all others by one network:
    the one that did not train on it.

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
    """Return the mean share, 0 to 1, of the other images that are in an image's fold; folds (N,)."""
    counts = np.bincount(folds)
    return float((counts * (counts - 1)).sum() / (len(folds) * (len(folds) - 1)))
