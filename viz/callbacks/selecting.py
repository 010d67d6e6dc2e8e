"""Selections on maps that show a part of the points: the shape comes from the page, what is in it from here."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from dash import Dash, Input, Output, State, no_update

from pipeline.errors import InputError
from viz.callbacks.deciding import shown_points
from viz.callbacks.exploring import Asked, asked_of
from viz.data import Source
from viz.outlines import inside


def selected_inside(source: Source, asked: Asked, drawn_around: Mapping[str, Any]) -> dict[str, Any]:
    """The selection that a hand has drawn: of the images shown, all inside, whether or not they are drawn as points.

    Args:
        drawn_around: `graph` and `generation` of the map, and the `outlines` on it. Where the files have been
            replaced since, nothing is selected.
    """
    selection = {"generation": drawn_around["generation"], "rows": [], "graph": drawn_around["graph"]}
    try:
        look, points = asked.look(source), shown_points(source, drawn_around["generation"])
    except InputError:
        # The map says what is wrong.
        return selection
    if points is None or points.images_stamp != look.points.images_stamp:
        return selection
    shown = np.flatnonzero(look.shown)
    return selection | {"rows": shown[inside(points.coordinates[shown], drawn_around["outlines"])].tolist()}


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
        # A page that is just being made asks all the same.
        return no_update if drawn_around is None else selected_inside(source, asked_of(values), drawn_around)
