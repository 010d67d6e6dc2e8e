"""Choose landmarks of a large data set, and transform all other points to their embedding."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openTSNE import TSNEEmbedding
from openTSNE.nearest_neighbors import KNNIndex

from pipeline.errors import InputError
from pipeline.reduction.neighbors import NeighborSearch

# openTSNE's defaults, except for two. Points start at their nearest landmark. From the median of 10 landmarks, 72 % of
# the points end near their class by a vote of neighbors, instead of 77 % (1,000 classes of 100, every other point a
# landmark). There are 100 iterations instead of 250, which give nearly the same vote (73.2 and 73.3 % with 80 points
# per class).
_PERPLEXITY = 5
_INITIAL_NEIGHBORS = 1
_ITERATIONS = 100
_LEARNING_RATE = 0.1
_EXAGGERATION = 1.5
_MOMENTUM = 0.8
_MAX_GRADIENT_NORM = 0.25
_ROWS = 8192


def transform(
    embedding: TSNEEmbedding,
    points: NDArray[np.float32],
    landmarks: NDArray[np.int64],
    *,
    settings: Mapping[str, Any],
    report: Callable[[int], None],
) -> NDArray[np.float32]:
    """Return coordinates (N, 2) of points (N, d) on the embedding (m, 2) of the rows `landmarks` (m,), which stay.

    This is openTSNE's `transform` (Poličar, Stražar and Zupan, 2023, doi:10.1007/s10994-021-06043-1), in blocks. Each
    other point starts at its nearest landmark, and only the landmarks move it. So its position depends neither on the
    blocks nor on the other points. Memory: O(block) in addition to the result.

    Args:
        embedding: fitted; `transform` centers it in place.
        settings: `negative_gradient_method`, as used for the embedding, and `random_state`.
        report: called with the number of points transformed since its last call.
    """
    coordinates = np.empty((len(points), 2), dtype=np.float32)
    coordinates[landmarks] = embedding
    center = (np.max(embedding, axis=0) + np.min(embedding, axis=0)) / 2
    embedding -= center
    others = np.setdiff1d(np.arange(len(points)), landmarks, assume_unique=True)
    search = NeighborSearch(points[landmarks], queries=len(others), seed=settings["random_state"])
    embedding.affinities.knn_index = _Landmarks(search, len(landmarks))
    for start in range(0, len(others), _ROWS):
        rows = others[start : start + _ROWS]
        partial = embedding.prepare_partial(
            points[rows], initialization="median", k=_INITIAL_NEIGHBORS, perplexity=_PERPLEXITY
        )
        partial.optimize(
            _ITERATIONS,
            inplace=True,
            learning_rate=_LEARNING_RATE,
            exaggeration=_EXAGGERATION,
            momentum=_MOMENTUM,
            max_grad_norm=_MAX_GRADIENT_NORM,
            max_step_norm=None,
            # openTSNE would choose a method by the size of the block.
            negative_gradient_method=settings["negative_gradient_method"],
            callbacks=None,
        )
        coordinates[rows] = np.asarray(partial) + center
        report(len(rows))
    return coordinates


class _Landmarks(KNNIndex):  # type: ignore[misc]
    """The index that openTSNE's affinities query for the landmarks nearest to new points."""

    def __init__(self, search: NeighborSearch, n_landmarks: int) -> None:
        self._search = search
        self.n_samples = n_landmarks

    def query(self, query: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return self._search.query(query, k)


def landmark_rows(labels: NDArray[np.int64], count: int, *, seed: int) -> NDArray[np.int64]:
    """Return `count` of N rows, sampled without replacement, ascending: each class has its share, and at least one.

    Shares are rounded down, and the remaining rows go to the classes with the largest remainders.

    Args:
        labels: (N,); `count` is at least the number of classes and at most N.
    """
    _, classes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    assert len(sizes) <= count <= len(labels), (len(sizes), count, len(labels))
    # One row per class, then shares of the rest, so that every class has landmarks, and not more than its images.
    shares = (sizes - 1) * ((count - len(sizes)) / max(1, len(labels) - len(sizes)))
    counts = 1 + np.floor(shares).astype(np.int64)
    remainders = np.argsort(np.floor(shares) - shares, kind="stable")
    counts[remainders[: count - counts.sum()]] += 1
    rng = np.random.default_rng(seed)
    # Each class's rows in random order: sorted by class, then by random numbers.
    order = np.lexsort((rng.random(len(labels)), classes))
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[rank < np.repeat(counts, sizes)])


def check_landmarks(count: int, *, n: int, n_classes: int, metric: str, key: str) -> None:
    """Check that `count` landmarks fit `n` training images of `n_classes` classes, and that `metric` is Euclidean.

    Raises:
        InputError: naming the key, its value and a fix.
    """
    if not n_classes <= count < n:
        raise InputError(
            f"reduce.landmarks: {count} must be at least the {n_classes} classes and fewer than the {n} training "
            "images; give another number, auto or none"
        )
    if metric not in ("euclidean", "l2"):
        raise InputError(
            f"{key}: {metric}, but images are transformed by Euclidean distances to landmarks; set "
            "reduce.landmarks: none, or metric: euclidean"
        )
