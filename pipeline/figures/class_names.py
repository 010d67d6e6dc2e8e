"""Names of the classes on the embedding."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_NAMED = 30
"""Number of classes above which their names would cover the points."""


class NamePlace(NamedTuple):
    """Name of a class and where it is written."""

    name: str
    x: float
    y: float


def name_places(
    xy: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]], class_names: Sequence[str]
) -> list[NamePlace]:
    """Return the place of the name of each class with images: the median of its points, which wrong labels hardly move.

    There are no places if more than `MAX_NAMED` classes have images.

    Args:
        xy: (N, 2) coordinates.
        labels: (N,) indices into `class_names`.
    """
    present = np.unique(labels).tolist()
    if len(present) > MAX_NAMED:
        return []
    return [NamePlace(class_names[label], *np.median(xy[labels == label], axis=0).tolist()) for label in present]
