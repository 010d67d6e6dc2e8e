"""Controls of the second settings of a comparison."""

from typing import Any

from dash import Dash, Input, Output, no_update

from pipeline.errors import InputError
from viz.callbacks.filter_controls import changed_settings
from viz.data import Source
from viz.filter_settings import AS_FILTERED, FilterSettings, Limit
from viz.number_ranges import number_problem
from viz.state import settings_to_json

# Half a step of the control `share-b`, 0.01 %.
_SAME_SHARE = 5e-5


def settings_b(
    source: Source, view: str, network: str | None, scorer_choice: str, share: Any, min_samples: Any
) -> dict[str, Any]:
    """Return the second settings of a comparison as JSON, and a message about a bad number, which changes nothing.

    The settings are None outside the view Compare.
    """
    if view != "compare" or not network:
        return {"settings": None, "problem": ""}
    if problem := number_problem("share", share) or number_problem("min_samples", min_samples):
        return {"settings": no_update, "problem": problem}
    settings = FilterSettings(scorer_choice=scorer_choice, limit=Limit(min_samples=int(min_samples)))
    try:
        points = source.points(network)
        if scorer_choice != AS_FILTERED or abs(share / 100 - points.is_noise.mean()) > _SAME_SHARE:
            settings = changed_settings(source, points, settings, None, "share", share)
    except InputError:
        # The map shows the error.
        pass
    return {"settings": settings_to_json(settings), "problem": ""}


def register(app: Dash, source: Source) -> None:
    """Register the callback."""
    app.callback(
        output={"settings": Output("settings-b", "data"), "problem": Output("number-problem-b", "children")},
        inputs=[
            Input("view", "value"),
            Input("network-b", "value"),
            Input("scorer-b", "value"),
            Input("share-b", "value"),
            Input("min_samples-b", "value"),
        ],
    )(lambda *values: settings_b(source, *values))
