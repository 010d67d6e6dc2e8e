"""Watch the files that the page shows for changes."""

from collections.abc import Mapping
from typing import Any

from dash import Dash, Input, Output, State, html, no_update

from pipeline.errors import InputError
from pipeline.stats.formatting import plural
from viz.callbacks.embedding import is_map_replaced
from viz.data import Points, Source


def update_notice(source: Source, network: str, plotted: Mapping[str, Any] | None) -> Any:
    """Return a notice if the files of the map have been replaced or created."""
    try:
        points = source.points(network)
    except InputError as error:
        # Without a map, the page shows the error in its place.
        return None if plotted is None else f"The shown files are missing or being written: {error}"
    if plotted is None:
        return html.Span(["The files exist now. ", html.A("Show them", href="")])
    if is_map_replaced(plotted, points):
        changes = filter_changes(source, plotted["generation"], points)
        return html.Span([f"A stage has written new files. {changes}", html.A("Show them", href="")])
    return None


def filter_changes(source: Source, generation: str, points: Points) -> str:
    """Return what the filter drops now against an earlier generation; empty if that is not known."""
    before = source.kept_before(generation, points)
    if before is None:
        return ""
    now = points.kept
    counts = f"The filter drops {plural(int((~now).sum()), 'image')} instead of {(~before).sum():,}"
    return f"{counts}: {(before & ~now).sum():,} newly dropped, {(now & ~before).sum():,} newly kept. "


def register(app: Dash, source: Source) -> None:
    """Check every few seconds, also for overrides from other windows or editors."""

    @app.callback(
        Output("banner", "children"),
        Output("edited", "data"),
        Input("clock", "n_intervals"),
        State("network", "value"),
        State("plotted", "data"),
        State("edited", "data"),
        prevent_initial_call=True,
    )
    def _watch(_n: int, network: str, plotted: Any, edited: str) -> tuple[Any, Any]:
        now = source.overrides_stamp()
        return update_notice(source, network, plotted), no_update if now == edited else now
