"""The points to which a map of very many is fitted."""

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError

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
