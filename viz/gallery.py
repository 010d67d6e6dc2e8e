"""Lists of images and their orders."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from viz.state import MapState


def listed_rows(
    state: MapState, which: str, order: str, *, selection: Sequence[int] = (), other: MapState | None = None
) -> NDArray[np.int64]:
    """Return the rows of a list, restricted to shown images.

    Args:
        state: of the map.
        which: a key of `layout.LISTS`; lists that compare are empty without `other`.
        order: a key of `layout.SORTS`.
        selection: rows selected on the map.
    """
    chosen = in_list(state, which, selection=selection, other=other)
    return sort_rows(state, np.flatnonzero(chosen & state.shown), order)


def in_list(
    state: MapState, which: str, *, selection: Sequence[int] = (), other: MapState | None = None
) -> NDArray[np.bool_]:
    """Return whether each image is in a list, shown or not, (N,); arguments as of `listed_rows`."""
    dropped = ~state.preview.keep
    dropped_b = np.zeros_like(dropped) if other is None else ~other.preview.keep
    chosen = np.zeros(len(dropped), dtype=np.bool_)
    match which:
        case "dropped":
            chosen = dropped
        case "shown":
            chosen[:] = True
        case "selection":
            chosen[[row for row in selection if 0 <= row < len(dropped)]] = True
        case "hand":
            chosen[list(state.preview.overrides)] = True
        case "planted":
            chosen = state.points.planted
        case _ if other is not None:
            only_a, only_b = dropped & ~dropped_b, dropped_b & ~dropped
            chosen = {"a": only_a, "b": only_b, "both": dropped & dropped_b, "differ": only_a | only_b}[which]
    return chosen


def sort_rows(state: MapState, rows: NDArray[np.int64], order: str) -> NDArray[np.int64]:
    """Return the rows (n,) in an order, a key of `layout.SORTS`."""
    points = state.points
    keys = {
        "suspect": -state.preview.scores[rows],
        "least_suspect": state.preview.scores[rows],
        "class": points.labels[rows],
        "most_confident": -points.confidence[rows],
    }
    return rows[np.argsort(keys[order], kind="stable")]
