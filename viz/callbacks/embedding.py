"""The first map: its points, colors and visible part."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dash import Dash, Input, Output, Patch, State
from dash.exceptions import PreventUpdate
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.figures.embeddings import (
    MAX_PLOTTED,
    Box,
    NamePlace,
    name_places,
    rows_to_draw,
)
from viz import components
from viz.color_by import colors_by
from viz.components import differences
from viz.data import Points, Source
from viz.drawings import empty_drawing, new_drawing, recolor, redraw, rename
from viz.state import MapState, make_map_state


@dataclass(frozen=True, kw_only=True)
class MapControls:
    """Values of the controls of one map; see `viz.state.make_map_state`.

    Attributes:
        network: name.
        settings_json: filter settings as JSON.
        classes: labels to show.
        scores: lowest and highest score to show.
        search: query of images to show; see `viz.search`.
    """

    network: str
    settings_json: Mapping[str, Any] | None = None
    classes: Sequence[int] | None = None
    scores: Sequence[float] | None = None
    search: str = ""

    def state(self, source: Source) -> MapState:
        """Return the state of the map."""
        return make_map_state(source, self.network, self.settings_json, self.classes, self.scores, self.search)


MAP_CONTROLS = (
    ("network", "value"), ("settings", "data"), ("classes", "value"), ("scores", "value"), ("search", "value"),
)  # fmt: skip
"""Id and property of each control of the first map."""


# Keys of relayout events that move the map; others may have a lasso of thousands of corners.
_MOVES = [f"{axis}.{key}" for axis in ("xaxis", "yaxis") for key in ("range[0]", "range[1]", "autorange")]


def parse_controls(values: Sequence[Any]) -> MapControls:
    """Return the controls from the values of `MAP_CONTROLS`."""
    network, settings_json, classes, scores, search = values
    query = search if isinstance(search, str) else ""
    return MapControls(network=network, settings_json=settings_json, classes=classes, scores=scores, search=query)


def parse_comparison(view: str, network: str | None, settings_json: Mapping[str, Any] | None) -> MapControls | None:
    """Return the controls of the second map; None outside the view Compare, or while they are empty."""
    if view != "compare" or not network or not settings_json:
        return None
    return MapControls(network=network, settings_json=settings_json)


def draw(
    source: Source,
    map_controls: MapControls,
    coloring: str,
    *,
    other: MapControls | None = None,
    plotted: Mapping[str, Any] | None = None,
    zoom: Mapping[str, Any] | None = None,
    focus: int | None = None,
    selected: Sequence[int] = (),
    named: bool = False,
) -> dict[str, Any]:
    """Return the drawing of the map, or the patch of the one on the page, its legend and its notices.

    Args:
        source: of the images.
        map_controls: of the map.
        coloring: a key of `COLORINGS`; unused in a comparison of two settings.
        other: controls to compare with.
        plotted: last result for the map on the page. If it is of these files, no coordinates are sent.
        zoom: last relayout event of plotly, which may be older than `plotted`.
        focus: row of the chosen image.
        selected: rows to highlight.
        named: write the names of the classes on the map.
    """
    try:
        state = map_controls.state(source)
    except InputError as error:
        nothing = dict.fromkeys(("legend", "notice", "planted", "plotted"))
        return {**nothing, "drawing": empty_drawing(), "problem": components.problem(str(error))}
    try:
        other_state = None if other is None else comparison_state(state, other, source)
    except InputError:
        # The list of differences shows the error. This map stays, in its own colors.
        other_state = None
    colors = (
        colors_by(coloring, state.color_data)
        if other_state is None
        else differences(state.preview, other_state.preview)
    )
    moved = None if zoom is None else {key: zoom[key] for key in _MOVES if key in zoom}
    box = visible_box(moved, plotted, map_controls.network)
    rows = rows_on_map(state, box)
    meta = map_meta(state, state.points, rows)
    points_key = plotted_points(map_controls.network, meta, rows)
    names = class_places(source, state.points) if named else ()
    drawing: Any
    if plotted is not None and is_map_current(plotted, state.points):
        drawing = Patch()
        recolor(drawing, colors, rows)
        if not has_points(plotted, points_key):
            redraw(drawing, rows, meta, selected)
        if plotted.get("named") != named:
            rename(drawing, names)
    else:
        drawing = new_drawing(
            state.points, rows, colors, meta, view=map_controls.network, ring=focus, selected=selected, names=names
        )
    return {
        "drawing": drawing,
        "legend": components.legend(colors, np.flatnonzero(state.shown)),
        "notice": _notice(state, rows, box),
        "planted": _planted_notice(state.points),
        "problem": None,
        "plotted": {**points_key, "named": named, "box": box, "zoom": moved},
    }


def comparison_state(state: MapState, other: MapControls, source: Source) -> MapState:
    """Return the second state of the same images.

    Raises:
        InputError: as `make_map_state`; or the images have been replaced between the two.
    """
    other_state = other.state(source)
    if other_state.points.images_stamp != state.points.images_stamp:
        raise InputError("the training images have just been replaced; reload the page")
    return other_state


def rows_on_map(state: MapState, box: Box | None) -> NDArray[np.int64]:
    """Return rows of the points to draw; later ones are on top."""
    points = state.points
    # Small maps use the order of the filter, so that other settings move no point and only colors are sent.
    scores = points.scores if len(points) <= MAX_PLOTTED else _order(state)
    return rows_to_draw(points.coordinates, scores, state.shown, box=box, at_most=MAX_PLOTTED)


def _order(state: MapState) -> NDArray[np.float64]:
    """Return values (N,) in the order of suspicion, which another threshold for all classes does not change."""
    thresholds = state.preview.thresholds
    # Scores of different values may be equal: they are rounded.
    return state.preview.values if (thresholds == thresholds[0]).all() else state.preview.scores


def class_places(source: Source, points: Points) -> list[NamePlace]:
    """Return where the names of the classes are written."""
    return source.cache.get(
        (points.network, "class places"),
        points.stamp,
        lambda: name_places(points.coordinates, points.labels, points.class_names),
    )


def map_meta(state: MapState, points: Points, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return metadata of a map: the generation of its points, and whether it draws only some of the shown ones."""
    return {"generation": points.generation, "partial": len(rows) < int(state.shown.sum())}


def plotted_points(network: str, meta: Mapping[str, Any], rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return what identifies the plotted points: network, metadata, and a digest of the rows (n,) in their order."""
    return {"network": network, **meta, "rows": hashlib.blake2b(rows.tobytes(), digest_size=16).hexdigest()}


def has_points(plotted: Mapping[str, Any] | None, points_key: Mapping[str, Any]) -> bool:
    """Return whether the map on the page has the points of `plotted_points`, so that its rows stay."""
    return plotted is not None and {key: plotted.get(key) for key in points_key} == points_key


def visible_box(zoom: Mapping[str, Any] | None, plotted: Mapping[str, Any] | None, network: str) -> Box | None:
    """Return the visible part of the map; None for all of it.

    Args:
        zoom: last relayout event of plotly, of the axes or e.g. of the chosen tool.
        plotted: result of `draw` for the map on the page.
        network: of the map.
    """
    if zoom is None or (plotted is not None and plotted.get("network") != network):
        return None
    before = None if plotted is None else plotted.get("box")
    if any(f"{axis}.autorange" in zoom for axis in ("xaxis", "yaxis")):
        return None
    range_ends = [zoom.get(f"{axis}.range[{end}]") for axis in ("xaxis", "yaxis") for end in (0, 1)]
    ends = [float(end) for end in range_ends if isinstance(end, int | float)]
    if len(ends) < len(range_ends) or (plotted is not None and zoom == plotted.get("zoom")):
        return before
    (left, right), (bottom, top) = sorted(ends[:2]), sorted(ends[2:])
    return (left, right), (bottom, top)


def is_map_current(plotted: Mapping[str, Any] | None, points: Points) -> bool:
    """Return whether the map on the page shows these points."""
    return plotted is not None and plotted.get("generation") == points.generation


def is_map_replaced(plotted: Mapping[str, Any] | None, points: Points) -> bool:
    """Return whether the map on the page shows this network from replaced files."""
    return plotted is not None and plotted.get("network") == points.network and not is_map_current(plotted, points)


def require_generation(source: Source, network: str, plotted: Mapping[str, Any] | None) -> None:
    """Check that the files are those of the map on the page; a reload shows the new files.

    Raises:
        PreventUpdate: the files have been replaced since the map was plotted.
    """
    try:
        points = source.points(network)
    except InputError:
        # The map shows the error.
        return
    if is_map_replaced(plotted, points):
        raise PreventUpdate


def register(app: Dash, source: Source) -> None:
    """Register the callbacks."""

    @app.callback(
        output={
            "drawing": Output("map-drawing", "data"),
            "legend": Output("legend", "children"),
            "notice": Output("notice", "children"),
            "planted": Output("planted", "children"),
            "problem": Output("problem", "children"),
            "plotted": Output("plotted", "data"),
        },
        inputs={
            "map_controls": tuple(Input(*control) for control in MAP_CONTROLS),
            "coloring": Input("coloring", "value"),
            "comparison": (Input("view", "value"), Input("network-b", "value"), Input("settings-b", "data")),
            "_edited": Input("map-edited", "data"),
            "_zoomed": Input("zoomed", "data"),
            "zoom": State("map", "relayoutData"),
            "plotted": State("plotted", "data"),
            "focus": State("focus", "data"),
            "selection": State("selection", "data"),
            "names": Input("names", "value"),
        },
    )
    def _draw(
        map_controls: Any,
        coloring: str,
        comparison: Sequence[Any],
        _edited: str,
        _zoomed: Any,
        zoom: Any,
        plotted: Any,
        focus: Any,
        selection: Any,
        names: Any,
    ) -> dict[str, Any]:
        require_generation(source, map_controls[0], plotted)
        other = parse_comparison(*comparison)
        return draw(
            source, parse_controls(map_controls), coloring,
            other=other, plotted=plotted, zoom=zoom, focus=focus, selected=selection["rows"],
            named=bool(names),
        )  # fmt: skip


def _notice(state: MapState, rows: NDArray[np.int64], box: Box | None) -> str:
    n_shown, n = int(state.shown.sum()), len(state.points)
    if len(rows) < n_shown:
        which = "the most suspect and a sample of the others. Zoom in to see more."
        if box is not None and len(rows) < MAX_PLOTTED:
            which = "all in the visible part."
        return (
            f"{len(rows):,} of {n_shown:,} images are plotted: {which} "
            "Lasso and box select all images inside, plotted or not. Zooming clears them."
        )
    return f"{n_shown:,} of {n:,} images shown" if n_shown < n else ""


def _planted_notice(points: Points) -> str | None:
    if (note := points.planted_note) is None:
        return None
    return f"{note.capitalize()} of {len(points):,}. Overrides stay when the labels change: decide by the image."
