"""What lies inside the shapes drawn around points of a map."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.path import Path
from numpy.typing import NDArray

Outline = Sequence[tuple[float, float]]
"""Corners of a polygon in units of the map; the last is joined to the first."""


def inside(xy: NDArray[np.floating[Any]], outlines: Sequence[Outline]) -> NDArray[np.bool_]:
    """(N,) whether each of the (N, 2) places lies in one of the outlines or more."""
    found = np.zeros(len(xy), dtype=np.bool_)
    for outline in outlines:
        corners = np.asarray(outline, dtype=np.float64).reshape(-1, 2)
        if len(corners):
            # The path ends with a corner of its own, which is not looked at.
            found |= Path(np.concatenate([corners, corners[:1]]), closed=True).contains_points(xy)
    return found
