"""Select the points inside a lasso."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from dash import Dash, Input, Output, State, no_update
from matplotlib.path import Path
from numpy.typing import NDArray
from pydantic import BaseModel, Field, FiniteFloat

from pipeline.errors import InputError
from viz.callbacks.embedding import MAP_CONTROLS, MapControls, parse_controls
from viz.callbacks.overrides import current_points
from viz.data import Source

Outline = Sequence[tuple[float, float]]
"""Corners of a closed polygon in units of the embedding."""


def inside_lasso(xy: NDArray[np.floating[Any]], outlines: Sequence[Outline]) -> NDArray[np.bool_]:
    """Return whether each of the points (N, 2) lies in at least one of the outlines, (N,)."""
    inside = np.zeros(len(xy), dtype=np.bool_)
    for outline in outlines:
        corners = np.asarray(outline, dtype=np.float64).reshape(-1, 2)
        if len(corners):
            # A closed path needs a last corner, which matplotlib ignores.
            inside |= Path(np.concatenate([corners, corners[:1]]), closed=True).contains_points(xy)
    return inside


class LassoShapes(BaseModel):
    """Shapes that the user drew on a map, as the page sends them.

    Attributes:
        generation: of the points on the map.
        graph: id of the map.
        outlines: corners of each shape, in units of the embedding; at most 100 shapes of 10,000 corners.
    """

    generation: str | None
    graph: Literal["map", "other"]
    outlines: Annotated[
        list[Annotated[list[tuple[FiniteFloat, FiniteFloat]], Field(max_length=10_000)]], Field(max_length=100)
    ]


def selected_inside(source: Source, map_controls: MapControls, shapes: LassoShapes) -> dict[str, Any]:
    """Select all shown images inside the shapes, including those that the map does not draw.

    If the files have been replaced since, select nothing.
    """
    selection: dict[str, Any] = {"generation": shapes.generation, "rows": [], "graph": shapes.graph}
    try:
        state, points = map_controls.state(source), current_points(source, shapes.generation)
    except InputError:
        # The map shows the error.
        return selection
    if points is None or points.images_stamp != state.points.images_stamp:
        return selection
    shown = np.flatnonzero(state.shown)
    return selection | {"rows": shown[inside_lasso(points.coordinates[shown], shapes.outlines)].tolist()}


def register(app: Dash, source: Source) -> None:
    """Register the callback; see assets/page.js."""

    @app.callback(
        Output("selection", "data", allow_duplicate=True),
        Input("lasso-shapes", "data"),
        *(State(*control) for control in MAP_CONTROLS),
        prevent_initial_call=True,
    )
    def _select(lasso_shapes: Any, *values: Any) -> Any:
        if lasso_shapes is None:
            return no_update
        return selected_inside(source, parse_controls(values), LassoShapes.model_validate(lasso_shapes))
