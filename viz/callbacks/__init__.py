"""Callbacks of the page: plain functions, and their registration with the controls."""

import json
from pathlib import Path

from dash import Dash, Input, Output, State

from viz.callbacks import (
    compare,
    compare_controls,
    embedding,
    file_watch,
    filter_controls,
    filter_run,
    gallery,
    hover,
    lasso,
    matrix,
    overrides,
    params_dialog,
    review,
    summary,
    url,
)
from viz.data import Source
from viz.filter_run import FilterRun


def register(app: Dash, source: Source, params: Path) -> None:
    """Register all callbacks with the page's controls."""
    url.register(app, params)
    filter_controls.register(app, source)
    embedding.register(app, source)
    compare.register(app, source)
    compare_controls.register(app, source)
    summary.register(app, source)
    hover.register(app, source)
    lasso.register(app, source)
    gallery.register(app, source)
    overrides.register(app, source)
    params_dialog.register(app, source, params)
    filter_run.register(app, FilterRun(params, source.data))
    file_watch.register(app, source)
    review.register(app, source)
    matrix.register(app, source)
    _register_in_browser(app)


def _register_in_browser(app: Dash) -> None:
    """Register callbacks that run in the browser; see assets/page.js and assets/maps.js."""
    for graph in ("map", "other"):
        app.clientside_callback(
            f"(...values) => window.batchsieveMap({json.dumps(graph)}, ...values)",
            Output(graph, "figure"),
            Input(f"{graph}-drawing", "data"),
            State(graph, "figure"),
        )
    app.clientside_callback(
        "(...events) => window.batchsieve.clicked(...events)",
        Output("page", "title"),
        Input("map", "clickData"),
        Input("other", "clickData"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        "(event, plotted) => window.batchsieve.zoomed(event, plotted)",
        Output("zoomed", "data"),
        Input("map", "relayoutData"),
        State("plotted", "data"),
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
    shown = [("map-focus", "data"), ("map-edited", "data"), ("review-focus", "data")]
    app.clientside_callback(
        "(...values) => window.batchsieve.show(...values)",
        *(Output(*store) for store in shown),
        Input("view", "value"),
        Input("focus", "data"),
        Input("edited", "data"),
        *(State(*store) for store in shown),
    )
    app.clientside_callback(
        "(...values) => window.batchsieve.reviewed(...values)",
        Output("decisions", "title"),
        Input("queue", "data"),
        Input("review-parts", "data"),
        Input("decision-parts", "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        "(size) => window.batchsieve.resize(size)",
        Output("size", "className"),
        Input("size", "value"),
    )
    # Opens the dialog immediately; its text comes from the server.
    app.clientside_callback(
        "(...clicks) => window.batchsieve.dialog()",
        Output("dialog", "title"),
        Input("propose", "n_clicks"),
        Input("close", "n_clicks"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        "(...values) => window.batchsieve.arrange(...values)",
        Output("page", "className"),
        Output("coloring", "disabled"),
        Input("view", "value"),
        Input("width", "value"),
        Input("network", "value"),
        Input("network-b", "value"),
    )
