"""The map, what hovering and clicking show, and the comparison of two settings on two maps."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dash import Dash, Input, Output, Patch, State, ctx, no_update
from dash.exceptions import PreventUpdate
from numpy.typing import NDArray

from pipeline.errors import InputError
from viz import parts
from viz.coloring import colors_by
from viz.comparison import differences
from viz.data import Points, Source
from viz.figures.explorer import MOST_DRAWN, POINTS, RING, Box, explorer_map, no_map, recolored, ring_at, rows_to_draw
from viz.look import Look, look_at


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the controls say of one map, as callbacks get it; see `look.look_at`."""

    network: str
    rule: Mapping[str, Any] | None = None
    classes: Sequence[int] | None = None
    scores: Sequence[float] | None = None

    def look(self, source: Source) -> Look:
        """What there is to show."""
        return look_at(source, self.network, self.rule, self.classes, self.scores)


def draw(
    source: Source,
    asked: Asked,
    coloring: str,
    *,
    other: Asked | None = None,
    drawn: Mapping[str, Any] | None = None,
    zoom: Mapping[str, Any] | None = None,
    focus: int | None = None,
) -> dict[str, Any]:
    """The map, its legend and what stands above it.

    Args:
        coloring: a key of `COLORINGS`; not looked at where two settings are compared.
        other: what to compare with.
        drawn: what this function gave for the map on the page; where only colours differ, only they are sent.
        zoom: plotly's last event about the axes, which may be older than `drawn`.
        focus: row of the chosen image.
    """
    try:
        look = asked.look(source)
        compared = None if other is None else look_beside(look, other, source)
    except InputError as error:
        nothing = dict.fromkeys(("legend", "notice", "drawn"))
        return {**nothing, "figure": no_map(), "problem": parts.problem(str(error))}
    colors = colors_by(coloring, look.facts) if compared is None else differences(look.verdict, compared.verdict)
    box = box_of(zoom, drawn, asked.network)
    rows = _rows(look, box)
    content = hashlib.blake2b(rows.tobytes(), digest_size=16).hexdigest()
    new = {"network": asked.network, "stamp": look.points.stamp, "rows": content}
    figure: Any
    if drawn is not None and {key: drawn.get(key) for key in new} == new:
        figure = Patch()
        figure["data"][POINTS]["marker"] = recolored(colors, rows)
    else:
        figure = explorer_map(look.points.coordinates, rows, colors, view=asked.network, ring=focus)
    return {
        "figure": figure,
        "legend": parts.legend(colors, rows),
        "notice": _notice(look, rows),
        "problem": None,
        "drawn": {**new, "box": box, "zoom": zoom},
    }


def look_beside(look: Look, other: Asked, source: Source) -> Look:
    """The second of two looks at the same images.

    Raises:
        InputError: as `look_at`; or the images have been replaced between the two.
    """
    found = other.look(source)
    if found.points.images_stamp != look.points.images_stamp:
        raise InputError("the training images have just been replaced; look again")
    return found


def draw_other(source: Source, asked: Asked, other: Asked) -> tuple[Any, Any]:
    """The second map of a comparison, of the other network, and the differences in numbers."""
    try:
        look = asked.look(source)
        compared = look_beside(look, other, source)
    except InputError as error:
        return no_map(), parts.problem(str(error))
    colors = differences(look.verdict, compared.verdict)
    rows = _rows(look, None)
    figure = explorer_map(compared.points.coordinates, rows, colors, view=f"other {other.network}")
    return figure, parts.difference_line(look.verdict, compared.verdict)


def select_on_other(source: Source, asked: Asked, selection: Sequence[int]) -> Any:
    """The same images stand out on the second map."""
    try:
        look = asked.look(source)
    except InputError:
        return no_update
    rows = _rows(look, None)
    figure: Any = Patch()
    figure["data"][POINTS]["selectedpoints"] = np.flatnonzero(np.isin(rows, selection)).tolist() if selection else None
    return figure


def hover(
    source: Source, event: Mapping[str, Any] | None, asked: Asked, drawn: Mapping[str, Any] | None
) -> tuple[bool, Any, Any]:
    """Whether the tooltip shows, where, and what."""
    row = row_of(event)
    look = None if row is None else _same(source, asked, drawn)
    if event is None or row is None or look is None or row >= len(look.points):
        return False, no_update, no_update
    return True, event["points"][0].get("bbox"), parts.tooltip(look, row)


def describe(source: Source, row: int | None, asked: Asked) -> Any:
    """The card about the chosen image; a hint while none is."""
    if row is None:
        return parts.hint()
    try:
        look = asked.look(source)
    except InputError as error:
        return parts.problem(str(error))
    return parts.card(look, row) if 0 <= row < len(look.points) else parts.hint()


def move_ring(source: Source, row: int | None, network: str) -> Any:
    """The ring on the map goes to the chosen image."""
    try:
        points = source.points(network)
    except InputError:
        return no_update
    figure: Any = Patch()
    for axis, values in ring_at(points.coordinates, row).items():
        figure["data"][RING][axis] = values
    return figure


def row_of(event: Mapping[str, Any] | None) -> int | None:
    """The row of the point that a hover or click event is about."""
    row = event["points"][0].get("customdata") if event and event.get("points") else None
    # By type: True is an integer to Python.
    return row if type(row) is int and row >= 0 else None


def register(app: Dash, source: Source) -> None:
    """Tie the functions above to the page's controls."""
    network, rule = Input("network", "value"), Input("rule", "data")
    filters = (Input("classes", "value"), Input("scores", "value"))

    @app.callback(
        output={
            "figure": Output("map", "figure"),
            "legend": Output("legend", "children"),
            "notice": Output("notice", "children"),
            "problem": Output("problem", "children"),
            "drawn": Output("drawn", "data"),
        },
        inputs={
            "asked": (network, rule, *filters),
            "coloring": Input("coloring", "value"),
            "view": Input("view", "value"),
            "b": (Input("network-b", "value"), Input("rule-b", "data")),
            "_edited": Input("edited", "data"),
            "zoom": Input("map", "relayoutData"),
            "drawn": State("drawn", "data"),
            "focus": State("focus", "data"),
        },
    )
    def _draw(
        asked: Any, coloring: str, view: str, b: Any, _edited: int, zoom: Any, drawn: Any, focus: int | None
    ) -> dict[str, Any]:
        zoomed = drawn is not None and set(ctx.triggered_prop_ids.values()) == {"map"}
        if zoomed and not _redrawn_on_zoom(source, asked[0]):
            raise PreventUpdate
        other = Asked(network=b[0], rule=b[1]) if view == "compare" and b[0] else None
        return draw(source, _asked(asked), coloring, other=other, drawn=drawn, zoom=zoom, focus=focus)

    @app.callback(
        Output("other", "figure"),
        Output("differences", "children"),
        Input("view", "value"),
        network,
        rule,
        *filters,
        Input("network-b", "value"),
        Input("rule-b", "data"),
        Input("edited", "data"),
    )
    def _draw_other(view: str, *values: Any) -> tuple[Any, Any]:
        if view != "compare" or not values[4]:
            return no_update, None
        return draw_other(source, _asked(values[:4]), Asked(network=values[4], rule=values[5]))

    app.callback(
        Output("other", "figure", allow_duplicate=True),
        Input("selection", "data"),
        State("view", "value"),
        State("network", "value"),
        State("rule", "data"),
        State("classes", "value"),
        State("scores", "value"),
        prevent_initial_call=True,
    )(lambda rows, view, *values: select_on_other(source, _asked(values), rows) if view == "compare" else no_update)
    app.callback(
        Output("tooltip", "show"),
        Output("tooltip", "bbox"),
        Output("tooltip", "children"),
        Input("map", "hoverData"),
        State("network", "value"),
        State("rule", "data"),
        State("drawn", "data"),
    )(lambda event, name, kept, drawn: hover(source, event, Asked(network=name, rule=kept), drawn))
    app.callback(Output("card", "children"), Input("focus", "data"), network, rule, Input("edited", "data"))(
        lambda row, name, kept, _edited: describe(source, row, Asked(network=name, rule=kept))
    )
    app.callback(
        Output("map", "figure", allow_duplicate=True),
        Input("focus", "data"),
        State("network", "value"),
        prevent_initial_call=True,
    )(lambda row, name: move_ring(source, row, name))


def _asked(values: Sequence[Any]) -> Asked:
    network, rule, classes, scores = values
    return Asked(network=network, rule=rule, classes=classes, scores=scores)


def _rows(look: Look, box: Box | None) -> NDArray[np.int64]:
    points = look.points
    # Up to that many, the order is the filter's, so that other settings move no point and only colours are sent.
    scores = points.scores if len(points) <= MOST_DRAWN else look.verdict.scores
    return rows_to_draw(points.coordinates, scores, look.shown, box=box)


def _notice(look: Look, rows: NDArray[np.int64]) -> str:
    n_shown, n = int(look.shown.sum()), len(look.points)
    if len(rows) < n_shown:
        return (
            f"{len(rows):,} of {n_shown:,} images are drawn: the most suspect and a sample of the others. "
            "Zoom in to see more."
        )
    return f"{n_shown:,} of {n:,} images shown" if n_shown < n else ""


def box_of(zoom: Mapping[str, Any] | None, drawn: Mapping[str, Any] | None, network: str) -> Box | None:
    """The part of the map that is looked at; None for all of it.

    Args:
        zoom: plotly's last event, about the axes or another matter, e.g. the chosen tool.
        drawn: what the page shows, see `draw`.
    """
    if zoom is None or (drawn is not None and drawn.get("network") != network):
        return None
    before = None if drawn is None else drawn.get("box")
    if any(f"{axis}.autorange" in zoom for axis in ("xaxis", "yaxis")):
        return None
    named = [zoom.get(f"{axis}.range[{end}]") for axis in ("xaxis", "yaxis") for end in (0, 1)]
    ends = [float(end) for end in named if isinstance(end, int | float)]
    if len(ends) < len(named) or (drawn is not None and zoom == drawn.get("zoom")):
        return before
    (left, right), (bottom, top) = sorted(ends[:2]), sorted(ends[2:])
    return (left, right), (bottom, top)


def _redrawn_on_zoom(source: Source, network: str) -> bool:
    """Whether the map shows a part of the points only, another one after zooming."""
    try:
        return len(source.points(network)) > MOST_DRAWN
    except InputError:
        return False


def _same(source: Source, asked: Asked, drawn: Mapping[str, Any] | None) -> Look | None:
    """What there is to show, unless the files have been replaced since the map was drawn."""
    try:
        look = asked.look(source)
    except InputError:
        return None
    return look if drawn_from(drawn, look.points) else None


def drawn_from(drawn: Mapping[str, Any] | None, points: Points) -> bool:
    """Whether the map on the page shows these points."""
    return drawn is not None and drawn.get("stamp") == points.stamp
