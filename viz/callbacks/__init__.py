"""What the page answers, as plain functions, and which control asks for it."""

from pathlib import Path

from dash import Dash, Input, Output

from viz.callbacks import (
    browsing,
    comparing,
    deciding,
    exploring,
    judging,
    linking,
    pointing,
    proposing,
    selecting,
    watching,
)
from viz.data import Source


def register(app: Dash, source: Source, params: Path) -> None:
    """Tie everything to the page's controls."""
    linking.register(app, params)
    judging.register(app, source)
    exploring.register(app, source)
    comparing.register(app, source)
    pointing.register(app, source)
    selecting.register(app, source)
    browsing.register(app, source)
    deciding.register(app, source)
    proposing.register(app, source, params)
    watching.register(app, source)
    _register_in_browser(app)


def _register_in_browser(app: Dash) -> None:
    """What needs no server; see assets/page.js."""
    app.clientside_callback(
        "(...events) => window.batchsieve.clicked(...events)",
        Output("page", "title"),
        Input("map", "clickData"),
        Input("other", "clickData"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        "(...events) => window.batchsieve.selected(...events)",
        Output("selection", "data"),
        Input("map", "selectedData"),
        Input("other", "selectedData"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        "(selection) => selection.rows.length ? 'selection' : window.dash_clientside.no_update",
        Output("list", "value", allow_duplicate=True),
        Input("selection", "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        "(chosen) => window.batchsieve.offer(chosen)",
        Output("keep-selection", "disabled"),
        Output("drop-selection", "disabled"),
        Output("keep-selection", "children"),
        Output("drop-selection", "children"),
        Input("offered", "data"),
    )
    app.clientside_callback(
        "(row, grid) => window.batchsieve.mark(row)",
        Output("grid", "title"),
        Input("focus", "data"),
        Input("grid", "children"),
    )
    # Opens the dialog at once; what it says comes from the server.
    app.clientside_callback(
        "(...clicks) => window.batchsieve.dialog()",
        Output("dialog", "title"),
        Input("propose", "n_clicks"),
        Input("close", "n_clicks"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        "(view, width) => window.batchsieve.arrange(view, width)",
        Output("page", "className"),
        Output("coloring", "disabled"),
        Input("view", "value"),
        Input("width", "value"),
    )
