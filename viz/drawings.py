"""Maps as they are sent to the page: coordinates once, then the rows to draw and their colors.

A drawing is in a store. It has a figure without points, the rows of its points, the address of all coordinates, and
the parts of the figure that later answers have replaced. The page applies what changed to the figure as the user left
it; see assets/maps.js.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import numpy as np
from dash import Patch
from numpy.typing import NDArray

from pipeline.figures.embeddings import (
    NamePlace,
    map_frame,
    name_annotations,
    no_map,
    recolored,
    ring_at,
    selection_marks,
)
from pipeline.figures.style import Colors
from viz.data import Points

PARTS = ("marker", "marks", "ring", "names", "meta")
"""Parts of a figure that a patch can replace; None in a drawing that was not patched."""


def empty_drawing() -> dict[str, Any]:
    """Return a drawing without points, which can be patched."""
    return {"figure": no_map(), "rows": "", "coordinates": None, **dict.fromkeys(PARTS)}


def new_drawing(
    points: Points,
    rows: NDArray[np.int64],
    colors: Colors,
    meta: Mapping[str, Any],
    *,
    view: str,
    ring: int | None,
    selected: Sequence[int],
    names: Sequence[NamePlace] = (),
) -> dict[str, Any]:
    """Return the drawing of the points `rows` (n,), the last on top.

    Args:
        points: of the network.
        rows: to draw.
        colors: of all images.
        meta: metadata of the map.
        view, ring, selected, names: see `map_frame`.
    """
    figure = map_frame(points.coordinates, rows, colors, view=view, ring=ring, selected=selected, names=names)
    figure.layout.meta = dict(meta)
    address = f"/coordinates?{urlencode({'generation': points.generation})}"
    return {"figure": figure, "rows": _encoded(rows), "coordinates": address, **dict.fromkeys(PARTS)}


def recolor(drawing: Any, colors: Colors, rows: NDArray[np.int64]) -> None:
    """Give the points `rows` (n,) of a drawing, a patch, other colors."""
    drawing["marker"] = recolored(colors, rows)


def redraw(drawing: Any, rows: NDArray[np.int64], meta: Mapping[str, Any], selected: Sequence[int]) -> None:
    """Draw the points `rows` (n,) instead of others, with the metadata and the selected rows among them."""
    drawing["rows"], drawing["meta"] = _encoded(rows), dict(meta)
    drawing["marks"] = selection_marks(rows, selected)


def rename(drawing: Any, names: Sequence[NamePlace]) -> None:
    """Write these names of classes on a drawing, a patch, and no others."""
    drawing["names"] = name_annotations(names)


def marked(rows: NDArray[np.int64], selected: Sequence[int]) -> Any:
    """Return the patch of a drawing of the points `rows` (n,) that highlights the rows `selected`, without a lasso."""
    drawing: Any = Patch()
    drawing["marks"] = selection_marks(rows, selected)
    return drawing


def ringed(points: Points, row: int | None) -> Any:
    """Return the patch of a drawing that moves the ring to a row; None removes it."""
    drawing: Any = Patch()
    drawing["ring"] = ring_at(points.coordinates, row)
    return drawing


def coordinate_bytes(points: Points) -> bytes:
    """Return x of all N images, then y, as little-endian float32."""
    return np.ascontiguousarray(points.coordinates.T, dtype="<f4").tobytes()


def _encoded(rows: NDArray[np.int64]) -> str:
    """Return rows (n,) as base64 of little-endian uint32."""
    return base64.b64encode(rows.astype("<u4").tobytes()).decode("ascii")
