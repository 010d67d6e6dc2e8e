"""Select the training images that each arm of a comparison trains on."""

import numpy as np
from numpy.typing import NDArray

WHOLE_ARMS = frozenset({"full", "relabeled"})
"""Arms of all images."""

# Separate the random streams of the two random arms, and of training, under one seed.
_MATCHED, _UNIFORM = 11, 12


def arm_mask(
    arm: str, labels: NDArray[np.int64], keep: NDArray[np.bool_], *, seed: int, draw: int = 0
) -> NDArray[np.bool_]:
    """Return the rows that `arm` trains on, (N,) bool.

    `full` and `relabeled` are all rows, `filtered` those in `keep`. `random` samples exactly as many of each class as
    the filter kept, `random_uniform` as many in total. Both sample again for every seed and draw.

    Args:
        labels: (N,) class of each row.
        keep: (N,) bool, the filter's decision.
        draw: index of the filter among a study's filters; filters of equal counts have separate random arms.
    """
    match arm:
        case "full" | "relabeled":
            return np.ones(len(labels), dtype=np.bool_)
        case "filtered":
            return keep.copy()
        case "random":
            return _random_per_class(labels, keep, np.random.default_rng([seed, _MATCHED, draw]))
        case "random_uniform":
            mask = np.zeros(len(labels), dtype=np.bool_)
            rng = np.random.default_rng([seed, _UNIFORM, draw])
            mask[rng.choice(len(labels), size=int(keep.sum()), replace=False)] = True
            return mask
        case _:
            raise AssertionError(arm)


def _random_per_class(
    labels: NDArray[np.int64], keep: NDArray[np.bool_], rng: np.random.Generator
) -> NDArray[np.bool_]:
    mask = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        mask[rng.choice(rows, size=int(keep[rows].sum()), replace=False)] = True
    return mask
