"""Which training images each arm of a comparison sees."""

import numpy as np
from numpy.typing import NDArray

# Keeps the draws of the two random arms, and those of training, apart under one seed.
_MATCHED, _UNIFORM = 11, 12


def arm_mask(
    arm: str, labels: NDArray[np.int64], keep: NDArray[np.bool_], *, seed: int, draw: int = 0
) -> NDArray[np.bool_]:
    """(N,) bool: the rows that `arm` trains on.

    `full` is all of them, `filtered` those in `keep`. `random` has exactly as many of each class as
    the filter kept, `random_uniform` as many in all; both are drawn anew for every seed and draw.

    Args:
        labels: (N,) class of each row.
        keep: (N,) the filter's decision.
        draw: which of a study's filters `keep` is; filters of equal counts have random arms of their own.
    """
    match arm:
        case "full":
            return np.ones(len(labels), dtype=np.bool_)
        case "filtered":
            return keep.copy()
        case "random":
            return _random_per_class(labels, keep, np.random.default_rng([seed, _MATCHED, draw]))
        case "random_uniform":
            members = np.zeros(len(labels), dtype=np.bool_)
            rng = np.random.default_rng([seed, _UNIFORM, draw])
            members[rng.choice(len(labels), size=int(keep.sum()), replace=False)] = True
            return members
        case _:
            raise AssertionError(arm)


def _random_per_class(
    labels: NDArray[np.int64], keep: NDArray[np.bool_], rng: np.random.Generator
) -> NDArray[np.bool_]:
    members = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        members[rng.choice(rows, size=int(keep[rows].sum()), replace=False)] = True
    return members
