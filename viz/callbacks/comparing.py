"""The second map of a comparison of two settings."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from dash import Dash, Input, Output, Patch, State, no_update

from pipeline.errors import InputError
from viz import parts
from viz.callbacks.exploring import Asked, asked_of, compared, drawn_rows, look_beside, stay_with
from viz.comparison import differences
from viz.data import Source
from viz.figures.explorer import POINTS, explorer_map, no_map


def draw_other(source: Source, asked: Asked, other: Asked) -> tuple[Any, Any]:
    """The second map of a comparison, of the other network, and the differences in numbers."""
    try:
        look = asked.look(source)
        beside = look_beside(look, other, source)
    except InputError as error:
        return no_map(), parts.problem(str(error))
    colors = differences(look.verdict, beside.verdict)
    rows = drawn_rows(look, None)
    figure = explorer_map(beside.points.coordinates, rows, colors, view=f"other {other.network}")
    figure.layout.meta = {"generation": beside.points.generation}
    return figure, parts.difference_line(look.verdict, beside.verdict)


def select_on_other(source: Source, asked: Asked, selection: Sequence[int]) -> Any:
    """The same images stand out on the second map."""
    try:
        look = asked.look(source)
    except InputError:
        return no_update
    rows = drawn_rows(look, None)
    figure: Any = Patch()
    figure["data"][POINTS]["selectedpoints"] = np.flatnonzero(np.isin(rows, selection)).tolist() if selection else None
    return figure


def register(app: Dash, source: Source) -> None:
    """Tie the functions above to the page's controls."""
    names = (("network", "value"), ("rule", "data"), ("classes", "value"), ("scores", "value"))

    @app.callback(
        Output("other", "figure"),
        Output("differences", "children"),
        inputs={
            "asked": tuple(Input(*name) for name in names),
            "view": Input("view", "value"),
            "b": (Input("network-b", "value"), Input("rule-b", "data")),
            "_edited": Input("edited", "data"),
            "drawn": State("drawn", "data"),
        },
    )
    def _draw_other(asked: Sequence[Any], view: str, b: Sequence[Any], _edited: str, drawn: Any) -> tuple[Any, Any]:
        stay_with(source, asked[0], drawn)
        other = compared(view, *b)
        return (no_update, None) if other is None else draw_other(source, asked_of(asked), other)

    app.callback(
        Output("other", "figure", allow_duplicate=True),
        Input("selection", "data"),
        State("view", "value"),
        *(State(*name) for name in names),
        prevent_initial_call=True,
    )(lambda rows, view, *values: select_on_other(source, asked_of(values), rows) if view == "compare" else no_update)
