"""What others do to the files that the page shows."""

from collections.abc import Mapping
from typing import Any

from dash import Dash, Input, Output, State, html, no_update

from pipeline.errors import InputError
from viz.callbacks.embedding import replaced
from viz.data import Source


def update_notice(source: Source, network: str, drawn: Mapping[str, Any] | None) -> Any:
    """A line where the files that the map shows have been replaced, or have come."""
    try:
        points = source.points(network)
    except InputError as error:
        # Without a map, it is said in its place.
        return None if drawn is None else f"The files shown are gone or being written: {error}"
    if drawn is None:
        return html.Span(["The files are there now. ", html.A("Show them", href="")])
    if replaced(drawn, points):
        return html.Span(["A stage has written new files. ", html.A("Show them", href="")])
    return None


def register(app: Dash, source: Source) -> None:
    """Look every few seconds; decisions of other windows and by hand are taken in."""

    @app.callback(
        Output("banner", "children"),
        Output("edited", "data"),
        Input("clock", "n_intervals"),
        State("network", "value"),
        State("drawn", "data"),
        State("edited", "data"),
        prevent_initial_call=True,
    )
    def _watch(_n: int, network: str, drawn: Any, edited: str) -> tuple[Any, Any]:
        now = source.overrides_stamp()
        return update_notice(source, network, drawn), no_update if now == edited else now
