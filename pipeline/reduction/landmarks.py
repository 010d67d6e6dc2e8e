"""Landmarks of a large data set, and the placing of all others among them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openTSNE import TSNEEmbedding
from openTSNE.nearest_neighbors import KNNIndex

from pipeline.errors import InputError
from pipeline.reduction.neighbors import NeighborSearch

# The places of further points on a map that is there already.


# openTSNE's own values but for two. Points start at their nearest landmark: from the median of 10, fewer of them end
# among their own class (72 against 77 % by the vote of neighbours; 1,000 classes of 100, every other point a landmark).
# And 100 iterations, not 250: they change the vote little (with 80 of a class, 73.2 % right before and 73.3 % after).
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
    """Places (N, 2) of points (N, d) on the map `embedding` (m, 2) of the rows `landmarks` (m,), which stay there.

    openTSNE's `transform` (Poličar, Stražar and Zupan, 2023, doi:10.1007/s10994-021-06043-1), block
    by block: each other point starts at its nearest landmark and is moved by the landmarks alone, so
    neither the blocks nor the other points matter. Memory: O(block) beside the result.

    Args:
        embedding: fitted; `transform` centres it in place.
        settings: `negative_gradient_method`, as used for the map, and `random_state`.
        report: called with the number of points placed since its last call.
    """
    places = np.empty((len(points), 2), dtype=np.float32)
    places[landmarks] = embedding
    middle = (np.max(embedding, axis=0) + np.min(embedding, axis=0)) / 2
    embedding -= middle
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
            # openTSNE would choose by the size of the block.
            negative_gradient_method=settings["negative_gradient_method"],
            callbacks=None,
        )
        places[rows] = np.asarray(partial) + middle
        report(len(rows))
    return places


class _Landmarks(KNNIndex):  # type: ignore[misc]
    """What openTSNE's affinities ask for the landmarks next to new points."""

    def __init__(self, search: NeighborSearch, n_landmarks: int) -> None:
        self._search = search
        self.n_samples = n_landmarks

    def query(self, query: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return self._search.query(query, k)


# The points to which a map of very many is fitted.


AUTO_ABOVE = 200_000
"""Points from which on `auto` takes landmarks."""

AUTO_COUNT = 100_000
"""How many it takes."""


def landmark_count(landmarks: str | int, n: int) -> int | None:
    """How many of `n` points are landmarks by the setting `auto`, `none` or a number; None for no landmarks."""
    if landmarks == "none" or (landmarks == "auto" and n <= AUTO_ABOVE):
        return None
    return AUTO_COUNT if landmarks == "auto" else int(landmarks)


def landmark_rows(labels: NDArray[np.int64], count: int, *, seed: int) -> NDArray[np.int64]:
    """`count` of N rows, drawn without repeats, in ascending order: of each class its share, and one at least.

    Shares are rounded down, and the rows that remain go to the classes with the largest remainders.

    Args:
        labels: (N,); `count` is at least the number of classes and at most N.
    """
    _, classes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    assert len(sizes) <= count <= len(labels), (len(sizes), count, len(labels))
    # One of each class; of the others, shares: so no class has too many or none.
    shares = (sizes - 1) * ((count - len(sizes)) / max(1, len(labels) - len(sizes)))
    counts = 1 + np.floor(shares).astype(np.int64)
    remainders = np.argsort(np.floor(shares) - shares, kind="stable")
    counts[remainders[: count - counts.sum()]] += 1
    rng = np.random.default_rng(seed)
    # A class's rows in random order: sorted by class, with random numbers for what is equal.
    order = np.lexsort((rng.random(len(labels)), classes))
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[rank < np.repeat(counts, sizes)])


def check_landmarks(count: int, *, n: int, n_classes: int, metric: str, key: str) -> None:
    """Refuse landmarks that cannot stand for `n` training images of `n_classes` classes, or a `metric` given by `key`.

    Raises:
        InputError: naming the key, its value and the mend.
    """
    if not n_classes <= count < n:
        raise InputError(
            f"reduce.landmarks: {count} must be at least the {n_classes} classes and fewer than the {n} training "
            "images; give another number, auto or none"
        )
    if metric not in ("euclidean", "l2"):
        raise InputError(
            f"{key}: {metric}, but images are placed among landmarks by Euclidean distance; set "
            "reduce.landmarks: none, or metric: euclidean"
        )
