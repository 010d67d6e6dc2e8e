"""Pickers of the view Training."""

from functools import partial
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, dcc, html

from pipeline.config.params import Params, load_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from viz.training import batch_sizes, studies, study_view


def training_page(data: DataPaths, params: Params) -> html.Div:
    """Return the pickers and an empty container, which a callback fills."""
    names = studies(data, params)
    return html.Div(
        [
            html.Div("Study", className="name"),
            dcc.Dropdown(names, names[0] if names else None, id="study", clearable=False),
            html.Div("Batch size of the loss curves", className="name"),
            dcc.Dropdown([], id="study-batch", clearable=False),
            html.Div(id="training"),
        ],
        id="training-page",
    )


def batch_options(
    data: DataPaths, params: Params, name: str | None, chosen: int | None
) -> tuple[list[dict[str, Any]], int | None]:
    """Return options and value of the batch-size picker. The chosen value stays if the study has it."""
    try:
        sizes = batch_sizes(data, params, name)
    except InputError:
        # The view shows the error.
        return [], None
    value = chosen if chosen in sizes else next(iter(sizes), None)
    return [{"label": f"{size:,}", "value": size} for size in sizes], value


def register(app: Dash, data: DataPaths, params_file: Path) -> None:
    """Register the pickers."""
    read_params = partial(load_params, params_file, accept_old_keys=True)
    app.callback(
        Output("study-batch", "options"),
        Output("study-batch", "value"),
        Input("study", "value"),
        State("study-batch", "value"),
    )(lambda name, chosen: batch_options(data, read_params(), name, chosen))
    app.callback(Output("training", "children"), Input("study", "value"), Input("study-batch", "value"))(
        lambda name, batch_size: study_view(data, name, params=read_params(), batch_size=batch_size)
    )
