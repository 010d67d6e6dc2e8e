"""Stratified draws: the same share of every class, reproducible from a seed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Keep the draws for different purposes independent of each other under one seed.
_TEST, _VAL = 0, 1


def draw_test(labels: Sequence[int] | NDArray[np.int64], share: float, *, seed: int) -> NDArray[np.bool_]:
    """Which rows to hold out for testing; see `_draw`. At least two of a class stay where it has three."""
    return _draw(np.asarray(labels, dtype=np.int64), share, (seed, _TEST), rest=2)


def draw_val(labels: Sequence[int] | NDArray[np.int64], share: float, *, seed: int) -> NDArray[np.bool_]:
    """Which training rows to flag `val`; see `_draw`. At least one of a class stays where it has two."""
    return _draw(np.asarray(labels, dtype=np.int64), share, (seed, _VAL), rest=1)


def _draw(labels: NDArray[np.int64], share: float, key: tuple[int, int], *, rest: int) -> NDArray[np.bool_]:
    """Flag round(share * n) of each class of n rows, never none, and leave `rest` unless that is none.

    Each class has its own stream, so one more image of one class moves no other class.
    """
    flags = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = max(1, min(round(share * len(rows)), len(rows) - rest))
        rng = np.random.default_rng([*key, int(label)])
        flags[rng.permutation(rows)[:count]] = True
    return flags
