"""Lassos, and what they select."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from dash import Dash, Input, Output, State, no_update
from matplotlib.path import Path
from numpy.typing import NDArray
from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from pipeline.errors import InputError
from viz.callbacks.embedding import MapControls, parse_controls
from viz.callbacks.overrides import current_points
from viz.data import Source

# What lies inside the shapes drawn around points of a map.


Outline = Sequence[tuple[float, float]]
"""Corners of a polygon in units of the map; the last is joined to the first."""


def inside_lasso(xy: NDArray[np.floating[Any]], outlines: Sequence[Outline]) -> NDArray[np.bool_]:
    """(N,) whether each of the (N, 2) places lies in one of the outlines or more."""
    found = np.zeros(len(xy), dtype=np.bool_)
    for outline in outlines:
        corners = np.asarray(outline, dtype=np.float64).reshape(-1, 2)
        if len(corners):
            # The path ends with a corner of its own, which is not looked at.
            found |= Path(np.concatenate([corners, corners[:1]]), closed=True).contains_points(xy)
    return found


# Selections on maps that show a part of the points: the shape comes from the page, what is in it from here.


class LassoShapes(BaseModel):
    """What the page says of shapes on a map.

    Attributes:
        generation: of the map's points.
        outlines: corners of each shape, in units of the map; as many as a hand can draw.
    """

    generation: str | None
    graph: Literal["map", "other"]
    outlines: Annotated[
        list[Annotated[list[tuple[FiniteFloat, FiniteFloat]], Field(max_length=10_000)]], Field(max_length=100)
    ]


def selected_inside(source: Source, map_controls: MapControls, drawn: LassoShapes) -> dict[str, Any]:
    """The selection that a hand has drawn: of the images shown, all inside, whether or not they are drawn as points.

    Where the files have been replaced since, nothing is selected.
    """
    selection: dict[str, Any] = {"generation": drawn.generation, "rows": [], "graph": drawn.graph}
    try:
        state, points = map_controls.state(source), current_points(source, drawn.generation)
    except InputError:
        # The map says what is wrong.
        return selection
    if points is None or points.images_stamp != state.points.images_stamp:
        return selection
    shown = np.flatnonzero(state.shown)
    return selection | {"rows": shown[inside_lasso(points.coordinates[shown], drawn.outlines)].tolist()}


def register(app: Dash, source: Source) -> None:
    """Tie the function above to the page; see assets/page.js."""

    @app.callback(
        Output("selection", "data", allow_duplicate=True),
        Input("drawn-around", "data"),
        *(State(name, prop) for name, prop in (("network", "value"), ("rule", "data"))),
        *(State(name, "value") for name in ("classes", "scores")),
        prevent_initial_call=True,
    )
    def _select(drawn_around: Any, *values: Any) -> Any:
        try:
            drawn = LassoShapes.model_validate(drawn_around)
        except ValidationError:
            # Nothing is drawn, as on a page that is just being made; or this is none of the page's own.
            return no_update
        return selected_inside(source, parse_controls(values), drawn)
