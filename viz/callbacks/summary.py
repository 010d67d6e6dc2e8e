"""Summary of the preview: the curve of sorted values, and the table of classes."""

from collections.abc import Mapping
from typing import Any

from dash import Dash, Input, Output, State

from pipeline.errors import InputError
from pipeline.figures.curves import threshold_curve
from pipeline.figures.embeddings import no_map
from viz import components
from viz.callbacks.embedding import require_generation
from viz.callbacks.filter_controls import UNITS, threshold_of
from viz.data import Source
from viz.filter_settings import class_thresholds, dbscan_settings, default_threshold, sorted_distances
from viz.state import make_map_state


def summarize(
    source: Source, network: str, settings_json: Mapping[str, Any] | None, scope: int | None
) -> tuple[Any, Any]:
    """Return the curve of sorted distances with the threshold, and the table of classes."""
    try:
        state = make_map_state(source, network, settings_json)
        points, settings = state.points, state.settings
        label = scope if scope in points.classes else None
        current = threshold_of(source, points, settings, label)
        table = components.class_table(
            state, default_threshold(source, points, settings), class_thresholds(source, points, settings)
        )
        ordered = sorted_distances(source, points, settings, label)
    except InputError:
        # The map shows the error.
        return no_map(), None
    clustering = dbscan_settings(points, settings, label)
    title = "value of the scorer"
    if clustering is not None:
        space, min_samples = clustering
        # DBSCAN counts the image as its first neighbor.
        which = "the image itself" if min_samples == 1 else f"neighbor {min_samples - 1}"
        title = f"distance to {which} ({UNITS[space]})"
    return threshold_curve(ordered, current, title=title), table


def register(app: Dash, source: Source) -> None:
    """Register the callback."""

    @app.callback(
        Output("curve", "figure"),
        Output("table", "children"),
        Input("settings", "data"),
        Input("scope", "value"),
        Input("network", "value"),
        Input("edited", "data"),
        State("plotted", "data"),
    )
    def _summarize(settings_json: Any, scope: int, network: str, _edited: str, plotted: Any) -> tuple[Any, Any]:
        require_generation(source, network, plotted)
        return summarize(source, network, settings_json, scope)
