"""The button that runs the filter again."""

from typing import Any

from dash import Dash, Input, Output, State, ctx, no_update

from pipeline.errors import InputError
from viz.filter_run import FilterRun, RunStatus


def answer(run: FilterRun, network: str | None) -> tuple[str, str, bool]:
    """Return text, class and whether the button is disabled, after a click or the clock.

    Args:
        run: of the project.
        network: to start; None for the clock, which only asks for the status.
    """
    try:
        status = run.status() if network is None else run.start(network)
    except InputError as error:
        status = RunStatus(is_running=run.status().is_running, text=f"Not started: {error}", failed=True)
    return status.text, "failed" if status.failed else "", status.is_running


def register(app: Dash, run: FilterRun) -> None:
    """Register the callback."""

    @app.callback(
        Output("run-status", "children"),
        Output("run-status", "className"),
        Output("run-filter", "disabled"),
        Input("run-filter", "n_clicks"),
        Input("clock", "n_intervals"),
        State("network", "value"),
        State("run-filter", "disabled"),
        prevent_initial_call=True,
    )
    def _run(_clicks: int, _n: int, network: str, was_running: Any) -> tuple[Any, Any, Any]:
        clicked = ctx.triggered_id == "run-filter"
        if not clicked and not was_running and not run.status().is_running:
            # A message about a run that was not started stays.
            return no_update, no_update, no_update
        return answer(run, network if clicked else None)
