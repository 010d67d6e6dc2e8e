"""The second map of a comparison of two settings."""

from collections.abc import Sequence
from typing import Any

from dash import Dash, Input, Output, Patch, State, no_update

from pipeline.errors import InputError
from viz import parts
from viz.callbacks.exploring import Asked, asked_of, compared, drawn_rows, look_beside, map_meta, stay_with
from viz.comparison import differences
from viz.data import Source
from viz.figures.explorer import POINTS, Box, explorer_map, no_map, selection_marks


def draw_other(
    source: Source, asked: Asked, other: Asked, *, focus: int | None = None, selected: Sequence[int] = ()
) -> dict[str, Any]:
    """The second map of a comparison, of the other network, and the differences in numbers.

    Args:
        focus: row of the chosen image.
        selected: rows that stand out.
    """
    try:
        look = asked.look(source)
        beside = look_beside(look, other, source)
    except InputError as error:
        return {"figure": no_map(), "differences": parts.problem(str(error)), "drawn": None}
    colors = differences(look.verdict, beside.verdict)
    rows = drawn_rows(look, None)
    points, view = beside.points, f"other {other.network}"
    figure = explorer_map(points.coordinates, rows, colors, view=view, ring=focus, selected=selected)
    figure.layout.meta = map_meta(look, points, rows)
    return {
        "figure": figure,
        "differences": parts.difference_line(look.verdict, beside.verdict),
        "drawn": {"network": other.network, "generation": points.generation},
    }


def mark_selected(source: Source, asked: Asked, selected: Sequence[int], box: Box | None) -> Any:
    """The same images stand out on the map where they were not selected.

    Args:
        box: the part of that map that is drawn, see `exploring.box_of`.
    """
    try:
        look = asked.look(source)
    except InputError:
        return no_update
    marks = selection_marks(drawn_rows(look, box), selected)
    figure: Any = Patch()
    figure["data"][POINTS]["selectedpoints"] = marks["points"]
    # A lasso drawn on this one before would select anew.
    figure["layout"]["selections"] = []
    figure["layout"]["selectionrevision"] = marks["revision"]
    return figure


def register(app: Dash, source: Source) -> None:
    """Tie the functions above to the page's controls."""
    names = (("network", "value"), ("rule", "data"), ("classes", "value"), ("scores", "value"))

    @app.callback(
        output={
            "figure": Output("other", "figure"),
            "differences": Output("differences", "children"),
            "drawn": Output("drawn-b", "data"),
        },
        inputs={
            "asked": tuple(Input(*name) for name in names),
            "view": Input("view", "value"),
            "b": (Input("network-b", "value"), Input("rule-b", "data")),
            "_edited": Input("edited", "data"),
            "drawn": (State("drawn", "data"), State("drawn-b", "data")),
            "focus": State("focus", "data"),
            "selection": State("selection", "data"),
        },
    )
    def _draw_other(
        asked: Sequence[Any],
        view: str,
        b: Sequence[Any],
        _edited: str,
        drawn: Sequence[Any],
        focus: Any,
        selection: Any,
    ) -> dict[str, Any]:
        stay_with(source, asked[0], drawn[0])
        other = compared(view, *b)
        if other is None:
            return {"figure": no_update, "differences": None, "drawn": no_update}
        stay_with(source, other.network, drawn[1])
        return draw_other(source, asked_of(asked), other, focus=focus, selected=selection["rows"])

    @app.callback(
        Output("map", "figure", allow_duplicate=True),
        Output("other", "figure", allow_duplicate=True),
        Input("selection", "data"),
        State("view", "value"),
        State("drawn", "data"),
        *(State(*name) for name in names),
        prevent_initial_call=True,
    )
    def _mark(selection: Any, view: str, drawn: Any, *values: Any) -> tuple[Any, Any]:
        asked, rows = asked_of(values), selection["rows"]
        stay_with(source, asked.network, drawn)
        if selection["graph"] == "other":
            return mark_selected(source, asked, rows, drawn and drawn["box"]), no_update
        return no_update, mark_selected(source, asked, rows, None) if view == "compare" else no_update
