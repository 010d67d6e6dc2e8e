"""Pickers of the view Training."""

from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, dcc, html

from pipeline.config.batch_sizes import with_recorded_sizes
from pipeline.config.params import Params, load_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from viz.components import labeled, problem
from viz.training import batch_sizes, studies, study_view


def training_page(data: DataPaths, params: Params) -> html.Div:
    """Return the pickers and an empty container, which a callback fills."""
    names = studies(data, params)
    return html.Div(
        [
            *labeled("Study", dcc.Dropdown(names, names[0] if names else None, id="study", clearable=False)),
            *labeled("Batch size of the loss curves", dcc.Dropdown([], id="study-batch", clearable=False)),
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


def read_params(params_file: Path, data: DataPaths) -> Params:
    """Return the parameters, with the batch sizes that finished studies have found for `largest`.

    Raises:
        InputError: a file is missing, damaged or wrong.
    """
    return with_recorded_sizes(load_params(params_file, accept_old_keys=True), data)


def register(app: Dash, data: DataPaths, params_file: Path) -> None:
    """Register the pickers. The parameters may change while the page is open."""

    @app.callback(
        Output("study-batch", "options"),
        Output("study-batch", "value"),
        Input("study", "value"),
        State("study-batch", "value"),
    )
    def _options(name: str | None, chosen: int | None) -> tuple[list[dict[str, Any]], int | None]:
        try:
            return batch_options(data, read_params(params_file, data), name, chosen)
        except InputError:
            # The view shows the error.
            return [], None

    @app.callback(Output("training", "children"), Input("study", "value"), Input("study-batch", "value"))
    def _show(name: str | None, batch_size: int | None) -> html.Div:
        try:
            return study_view(data, name, params=read_params(params_file, data), batch_size=batch_size)
        except InputError as error:
            return problem(str(error))
