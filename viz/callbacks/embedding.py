"""The map: which points, in which colours, and of which part."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dash import Dash, Input, Output, Patch, State, ctx
from dash.exceptions import PreventUpdate
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.figures.explorer import MAX_DRAWN, POINTS, Box, explorer_map, no_map, recolored, rows_to_draw
from viz import components
from viz.color_by import colors_by
from viz.components import differences
from viz.data import Points, Source
from viz.state import MapState, make_map_state


@dataclass(frozen=True, kw_only=True)
class MapControls:
    """What the controls say of one map, as callbacks get it; see `viz.state.make_map_state`."""

    network: str
    rule: Mapping[str, Any] | None = None
    classes: Sequence[int] | None = None
    scores: Sequence[float] | None = None

    def state(self, source: Source) -> MapState:
        """What there is to show."""
        return make_map_state(source, self.network, self.rule, self.classes, self.scores)


def parse_controls(values: Sequence[Any]) -> MapControls:
    """From the values of the controls for network, rule, classes and scores."""
    network, rule, classes, scores = values
    return MapControls(network=network, rule=rule, classes=classes, scores=scores)


def compared(view: str, network: str | None, rule: Mapping[str, Any] | None) -> MapControls | None:
    """The second setting; None outside the view that compares, and while its controls say nothing."""
    return MapControls(network=network, rule=rule) if view == "compare" and network and rule else None


def draw(
    source: Source,
    map_controls: MapControls,
    coloring: str,
    *,
    other: MapControls | None = None,
    drawn: Mapping[str, Any] | None = None,
    zoom: Mapping[str, Any] | None = None,
    focus: int | None = None,
    selected: Sequence[int] = (),
) -> dict[str, Any]:
    """The map, its legend and what stands above it.

    Args:
        coloring: a key of `COLORINGS`; not looked at where two settings are compared.
        other: what to compare with.
        drawn: what this function gave for the map on the page; where only colours differ, only they are sent.
        zoom: plotly's last event about the axes, which may be older than `drawn`.
        focus: row of the chosen image.
        selected: rows that stand out.
    """
    try:
        state = map_controls.state(source)
        other_state = None if other is None else comparison_state(state, other, source)
    except InputError as error:
        nothing = dict.fromkeys(("legend", "notice", "planted", "drawn"))
        return {**nothing, "figure": no_map(), "problem": components.problem(str(error))}
    colors = (
        colors_by(coloring, state.color_data)
        if other_state is None
        else differences(state.preview, other_state.preview)
    )
    box = visible_box(zoom, drawn, map_controls.network)
    rows = rows_on_map(state, box)
    content = hashlib.blake2b(rows.tobytes(), digest_size=16).hexdigest()
    meta = map_meta(state, state.points, rows)
    new = {"network": map_controls.network, **meta, "rows": content}
    figure: Any
    if drawn is not None and {key: drawn.get(key) for key in new} == new:
        figure = Patch()
        figure["data"][POINTS]["marker"] = recolored(colors, rows)
    else:
        figure = explorer_map(
            state.points.coordinates, rows, colors, view=map_controls.network, ring=focus, selected=selected
        )
        figure.layout.meta = meta
    return {
        "figure": figure,
        "legend": components.legend(colors, np.flatnonzero(state.shown)),
        "notice": _notice(state, rows, box),
        "planted": _planted(state.points),
        "problem": None,
        "drawn": {**new, "box": box, "zoom": zoom},
    }


def comparison_state(state: MapState, other: MapControls, source: Source) -> MapState:
    """The second of two looks at the same images.

    Raises:
        InputError: as `make_map_state`; or the images have been replaced between the two.
    """
    found = other.state(source)
    if found.points.images_stamp != state.points.images_stamp:
        raise InputError("the training images have just been replaced; look again")
    return found


def register(app: Dash, source: Source) -> None:
    """Tie the functions above to the page's controls."""
    network, rule = Input("network", "value"), Input("rule", "data")
    filters = (Input("classes", "value"), Input("scores", "value"))

    @app.callback(
        output={
            "figure": Output("map", "figure"),
            "legend": Output("legend", "children"),
            "notice": Output("notice", "children"),
            "planted": Output("planted", "children"),
            "problem": Output("problem", "children"),
            "drawn": Output("drawn", "data"),
        },
        inputs={
            "map_controls": (network, rule, *filters),
            "coloring": Input("coloring", "value"),
            "view": Input("view", "value"),
            "b": (Input("network-b", "value"), Input("rule-b", "data")),
            "_edited": Input("edited", "data"),
            "zoom": Input("map", "relayoutData"),
            "drawn": State("drawn", "data"),
            "focus": State("focus", "data"),
            "selection": State("selection", "data"),
        },
    )
    def _draw(
        map_controls: Any,
        coloring: str,
        view: str,
        b: Any,
        _edited: str,
        zoom: Any,
        drawn: Any,
        focus: Any,
        selection: Any,
    ) -> dict[str, Any]:
        zoomed = drawn is not None and set(ctx.triggered_prop_ids.values()) == {"map"}
        if zoomed and not _redraws_on_zoom(source, map_controls[0]):
            raise PreventUpdate
        require_generation(source, map_controls[0], drawn)
        other = compared(view, *b)
        return draw(
            source, parse_controls(map_controls), coloring,
            other=other, drawn=drawn, zoom=zoom, focus=focus, selected=selection["rows"],
        )  # fmt: skip


def rows_on_map(state: MapState, box: Box | None) -> NDArray[np.int64]:
    """Rows of the points on the map, the last above."""
    points = state.points
    # Up to that many, the order is the filter's, so that other settings move no point and only colours are sent.
    scores = points.scores if len(points) <= MAX_DRAWN else state.preview.scores
    return rows_to_draw(points.coordinates, scores, state.shown, box=box)


def map_meta(state: MapState, points: Points, rows: NDArray[np.int64]) -> dict[str, Any]:
    """What a map says of itself: whose points it shows, and whether only some of those map_controls for."""
    return {"generation": points.generation, "partial": len(rows) < int(state.shown.sum())}


def _notice(state: MapState, rows: NDArray[np.int64], box: Box | None) -> str:
    n_shown, n = int(state.shown.sum()), len(state.points)
    if len(rows) < n_shown:
        which = "the most suspect and a sample of the others. Zoom in to see more."
        if box is not None and len(rows) < MAX_DRAWN:
            which = "all in this part of the map."
        return (
            f"{len(rows):,} of {n_shown:,} images are drawn: {which} "
            "The lasso and the box take all inside, also what is not drawn; after zooming they begin anew."
        )
    return f"{n_shown:,} of {n:,} images shown" if n_shown < n else ""


def _planted(points: Points) -> str | None:
    if (note := points.planted_note) is None:
        return None
    return f"{note.capitalize()} of {len(points):,}. Decisions by hand outlast them: judge the picture."


def visible_box(zoom: Mapping[str, Any] | None, drawn: Mapping[str, Any] | None, network: str) -> Box | None:
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


def _redraws_on_zoom(source: Source, network: str) -> bool:
    """Whether the map shows a part of the points only, another one after zooming."""
    try:
        return len(source.points(network)) > MAX_DRAWN
    except InputError:
        return False


def is_map_current(drawn: Mapping[str, Any] | None, points: Points) -> bool:
    """Whether the map on the page shows these points."""
    return drawn is not None and drawn.get("generation") == points.generation


def replaced(drawn: Mapping[str, Any] | None, points: Points) -> bool:
    """Whether the map on the page shows this network as its files were before."""
    return drawn is not None and drawn.get("network") == points.network and not is_map_current(drawn, points)


def require_generation(source: Source, network: str, drawn: Mapping[str, Any] | None) -> None:
    """A page shows one generation of a network's files; the next one comes when it is loaded again.

    Raises:
        PreventUpdate: the files have been replaced since the map was drawn.
    """
    try:
        points = source.points(network)
    except InputError:
        # Said by whatever is drawn in its place.
        return
    if replaced(drawn, points):
        raise PreventUpdate
