"""The second map of a comparison of two settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from dash import Dash, Input, Output, Patch, State, no_update

from pipeline.errors import InputError
from pipeline.figures.embeddings import Box
from viz import components
from viz.callbacks.embedding import (
    MAP_CONTROLS,
    MapControls,
    comparison_state,
    has_points,
    is_map_current,
    map_meta,
    parse_comparison,
    parse_controls,
    plotted_points,
    require_generation,
    rows_on_map,
)
from viz.components import differences
from viz.data import Source
from viz.drawings import empty_drawing, marked, new_drawing, recolor, redraw


def draw_comparison(
    source: Source,
    map_controls: MapControls,
    other: MapControls,
    *,
    plotted: Mapping[str, Any] | None = None,
    focus: int | None = None,
    selected: Sequence[int] = (),
    has_lasso: bool = False,
) -> dict[str, Any]:
    """Return the drawing of the second map of a comparison, or its patch, and the differences in numbers.

    Args:
        source: of the images.
        map_controls: of the first map.
        other: controls of the second map.
        plotted: last result for the second map on the page. If it is of these files, no coordinates are sent.
        focus: row of the chosen image.
        selected: rows to highlight.
        has_lasso: whether they were selected on this map, which then highlights them already.
    """
    try:
        state = map_controls.state(source)
        other_state = comparison_state(state, other, source)
    except InputError as error:
        return {"drawing": empty_drawing(), "differences": components.problem(str(error)), "plotted": None}
    colors = differences(state.preview, other_state.preview)
    rows = rows_on_map(state, None)
    points, view = other_state.points, f"other {other.network}"
    meta = map_meta(state, points, rows)
    points_key = plotted_points(other.network, meta, rows)
    drawing: Any
    if is_map_current(plotted, points):
        same = has_points(plotted, points_key)
        # The selection may have changed while the map was hidden.
        drawing = Patch() if same and has_lasso else marked(rows, selected)
        recolor(drawing, colors, rows)
        if not same:
            redraw(drawing, rows, meta, selected)
    else:
        drawing = new_drawing(points, rows, colors, meta, view=view, ring=focus, selected=selected)
    return {
        "drawing": drawing,
        "differences": components.difference_line(state.preview, other_state.preview),
        "plotted": points_key,
    }


def describe_differences(source: Source, map_controls: MapControls, other: MapControls) -> Any:
    """Return the differences of two settings in numbers."""
    try:
        state = map_controls.state(source)
        return components.difference_line(state.preview, comparison_state(state, other, source).preview)
    except InputError as error:
        return components.problem(str(error))


def mark_selected(source: Source, map_controls: MapControls, selected: Sequence[int], box: Box | None) -> Any:
    """Highlight the selected images on the other map.

    Args:
        source: of the images.
        map_controls: of that map.
        selected: rows.
        box: visible part of that map, see `embedding.visible_box`.
    """
    try:
        state = map_controls.state(source)
    except InputError:
        return no_update
    return marked(rows_on_map(state, box), selected)


def register(app: Dash, source: Source) -> None:
    """Register the callbacks."""

    @app.callback(
        output={
            "drawing": Output("other-drawing", "data"),
            "differences": Output("differences", "children"),
            "plotted": Output("plotted-b", "data"),
        },
        inputs={
            "map_controls": tuple(Input(*control) for control in MAP_CONTROLS),
            "comparison": (Input("view", "value"), Input("network-b", "value"), Input("settings-b", "data")),
            "_edited": Input("map-edited", "data"),
            "plotted": (State("plotted", "data"), State("plotted-b", "data")),
            "focus": State("focus", "data"),
            "selection": State("selection", "data"),
        },
    )
    def _draw_other(
        map_controls: Sequence[Any],
        comparison: Sequence[Any],
        _edited: str,
        plotted: Sequence[Any],
        focus: Any,
        selection: Any,
    ) -> dict[str, Any]:
        require_generation(source, map_controls[0], plotted[0])
        other = parse_comparison(*comparison)
        if other is None:
            return {"drawing": no_update, "differences": None, "plotted": no_update}
        require_generation(source, other.network, plotted[1])
        if other.network == map_controls[0]:
            # One map shows both settings of a network.
            text = describe_differences(source, parse_controls(map_controls), other)
            return {"drawing": no_update, "differences": text, "plotted": no_update}
        return draw_comparison(
            source, parse_controls(map_controls), other, plotted=plotted[1], focus=focus,
            selected=selection["rows"], has_lasso=selection["graph"] == "other",
        )  # fmt: skip

    @app.callback(
        Output("map-drawing", "data", allow_duplicate=True),
        Output("other-drawing", "data", allow_duplicate=True),
        Input("selection", "data"),
        State("view", "value"),
        State("plotted", "data"),
        *(State(*control) for control in MAP_CONTROLS),
        prevent_initial_call=True,
    )
    def _mark(selection: Any, view: str, plotted: Any, *values: Any) -> tuple[Any, Any]:
        map_controls, rows, graph = parse_controls(values), selection["rows"], selection["graph"]
        require_generation(source, map_controls.network, plotted)
        # The map with the lasso has the marks already.
        first = no_update if graph == "map" else mark_selected(source, map_controls, rows, plotted and plotted["box"])
        if graph == "other" or view != "compare":
            return first, no_update
        return first, mark_selected(source, map_controls, rows, None)
