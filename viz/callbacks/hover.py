"""Tooltip of the point under the mouse, and card of the chosen image."""

from collections.abc import Mapping
from typing import Any

from dash import Dash, Input, Output, State, no_update

from pipeline.errors import InputError
from viz import components
from viz.callbacks.embedding import MapControls, is_map_current, is_map_replaced, require_generation
from viz.data import Source
from viz.drawings import ringed
from viz.state import MapState

# Graph -> suffix of the ids of its controls.
_MAPS = {"map": "", "other": "-b"}


def hover(
    source: Source, event: Mapping[str, Any] | None, map_controls: MapControls, plotted: Mapping[str, Any] | None
) -> tuple[bool, Any, Any]:
    """Return whether the tooltip shows, its position and its content."""
    row = event_row(event)
    state = None if row is None else _current_state(source, map_controls, plotted)
    if event is None or row is None or state is None or row >= len(state.points):
        return False, no_update, no_update
    return True, event["points"][0].get("bbox"), components.tooltip(state, row)


def describe(source: Source, row: int | None, map_controls: MapControls) -> Any:
    """Return the card of the chosen image, or a hint if none is chosen."""
    if row is None:
        return components.hint()
    try:
        state = map_controls.state(source)
    except InputError as error:
        return components.problem(str(error))
    return components.card(state, row) if 0 <= row < len(state.points) else components.hint()


def move_ring(source: Source, row: int | None, network: str, plotted: Mapping[str, Any] | None) -> Any:
    """Move the ring on the map to the chosen image. A map of replaced files stays as it is."""
    try:
        points = source.points(network)
    except InputError:
        return no_update
    return no_update if is_map_replaced(plotted, points) else ringed(points, row)


def event_row(event: Mapping[str, Any] | None) -> int | None:
    """Return the row of the point of a hover or click event."""
    row = event["points"][0].get("customdata") if event and event.get("points") else None
    # By type: True is an int in Python.
    return row if type(row) is int and row >= 0 else None


def register(app: Dash, source: Source) -> None:
    """Register the callbacks."""
    network, settings = Input("network", "value"), Input("settings", "data")
    for graph, suffix in _MAPS.items():
        app.callback(
            Output(f"tooltip{suffix}", "show"),
            Output(f"tooltip{suffix}", "bbox"),
            Output(f"tooltip{suffix}", "children"),
            Input(graph, "hoverData"),
            State(f"network{suffix}", "value"),
            State(f"settings{suffix}", "data"),
            State(f"plotted{suffix}", "data"),
        )(
            lambda event, name, settings_json, plotted: hover(
                source, event, MapControls(network=name, settings_json=settings_json), plotted
            )
        )

    # One request for both maps.
    @app.callback(
        Output("map-drawing", "data", allow_duplicate=True),
        Output("other-drawing", "data", allow_duplicate=True),
        Input("map-focus", "data"),
        State("network", "value"),
        State("plotted", "data"),
        State("network-b", "value"),
        State("plotted-b", "data"),
        prevent_initial_call=True,
    )
    def _move_rings(row: int | None, name: str, plotted: Any, name_b: str, plotted_b: Any) -> tuple[Any, Any]:
        return move_ring(source, row, name, plotted), move_ring(source, row, name_b, plotted_b)

    @app.callback(
        Output("card", "children"),
        Input("map-focus", "data"),
        network,
        settings,
        Input("map-edited", "data"),
        State("plotted", "data"),
    )
    def _describe(row: int | None, name: str, settings_json: Any, _edited: str, plotted: Any) -> Any:
        require_generation(source, name, plotted)
        return describe(source, row, MapControls(network=name, settings_json=settings_json))


def _current_state(source: Source, map_controls: MapControls, plotted: Mapping[str, Any] | None) -> MapState | None:
    """Return the state, unless the files have been replaced since the map was plotted."""
    try:
        state = map_controls.state(source)
    except InputError:
        return None
    return state if is_map_current(plotted, state.points) else None
