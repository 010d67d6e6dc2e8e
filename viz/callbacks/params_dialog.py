"""Dialog that shows the change of params.yaml and then writes it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, ctx

from pipeline.config.params import load_params
from pipeline.errors import InputError
from viz.data import Source
from viz.filter_settings import AS_FILTERED, default_threshold
from viz.parameters import Proposal, changes_for, propose, write
from viz.state import make_map_state, settings_from_json


def initial_kind(params: Path, moved: Mapping[str, Any] | None) -> str:
    """Return the key of `dialogs.PROPOSAL_KINDS` with which the dialog opens.

    Args:
        params: the parameter file.
        moved: control and value that set the threshold last; None if none has since the page was opened.
    """
    try:
        loaded = load_params(params)
    except InputError:
        # The dialog shows the error.
        return "share"
    if len(loaded.networks) > 1:
        return "share"
    if moved is not None:
        return "share" if moved["control"] == "share" else "limit"
    return "limit" if loaded.filter.drop_fraction is None else "share"


def propose_settings(
    source: Source,
    params: Path,
    network: str,
    settings_json: Mapping[str, Any] | None,
    what: str,
    moved: Mapping[str, Any] | None = None,
) -> Proposal:
    """Propose the change of params.yaml that makes the filter use the settings of the preview.

    Args:
        source: of the images.
        params: the parameter file.
        network: of the preview.
        settings_json: settings as JSON.
        what: a key of `dialogs.PROPOSAL_KINDS`.
        moved: as in `initial_kind`. The share to which the control was moved is written as it is.

    Raises:
        InputError: params.yaml cannot hold the settings, or is damaged; a threshold for several networks.
    """
    points, settings = source.points(network), settings_from_json(settings_json)
    if settings.per_class:
        raise InputError(
            f"{params}: holds one threshold for all classes; move the sliders with `Settings for` all classes"
        )
    if settings.scorer_choice == AS_FILTERED and settings.limit.threshold is None:
        raise InputError(f"{params}: the filter uses these settings already; move a slider first")
    scorer = points.scorer if settings.scorer_choice == AS_FILTERED else settings.scorer
    if what == "share":
        if moved is not None and moved["control"] == "share":
            share = moved["value"] / 100
        else:
            # Overrides are stored separately, so they do not count.
            share = float(make_map_state(source, network, settings_json).preview.noise.mean())
        return propose(params, changes_for(scorer, drop_fraction=share))
    others = [other for other in load_params(params).networks if other != network]
    if others:
        raise InputError(
            f"{params}: a threshold for {network} does not apply to {', '.join(others)}; write the dropped fraction"
        )
    threshold = default_threshold(source, points, settings)
    limit = {"eps": threshold} if scorer["name"] == "dbscan" else {"threshold": threshold}
    return propose(params, changes_for(scorer, **limit))


def show_difference(
    source: Source,
    params: Path,
    network: str,
    settings_json: Mapping[str, Any] | None,
    what: str,
    moved: Mapping[str, Any] | None = None,
) -> tuple[str, bool]:
    """Return the diff or the reason why there is none, and whether there is a change to write."""
    try:
        difference = propose_settings(source, params, network, settings_json, what, moved).difference
    except InputError as error:
        return str(error), False
    return "\n".join(difference) or f"{params} has these settings already.", bool(difference)


def write_settings(
    source: Source,
    params: Path,
    network: str,
    settings_json: Mapping[str, Any] | None,
    what: str,
    shown: str,
    moved: Mapping[str, Any] | None = None,
) -> str:
    """Write the change if its diff is the one shown, and return a message."""
    try:
        proposal = propose_settings(source, params, network, settings_json, what, moved)
        if "\n".join(proposal.difference) != shown:
            return "Not written: the file or the settings have changed; close the dialog and open it again."
        write(proposal)
    except InputError as error:
        return f"Not written: {error}"
    return f"Written to {params}. Run `dvc repro` to apply it."


def register(app: Dash, source: Source, params: Path) -> None:
    """Register the callbacks."""

    @app.callback(
        Output("difference", "children"),
        Output("write", "disabled"),
        Output("written", "children"),
        Output("write-as", "value"),
        Input("propose", "n_clicks"),
        Input("write-as", "value"),
        State("network", "value"),
        State("settings", "data"),
        State("moved", "data"),
        prevent_initial_call=True,
    )
    def _show(_clicks: int, what: str, network: str, settings_json: Any, moved: Any) -> tuple[str, bool, str, str]:
        if ctx.triggered_id == "propose":
            what = initial_kind(params, moved)
        difference, any_change = show_difference(source, params, network, settings_json, what, moved)
        return difference, not any_change, "", what

    app.callback(
        Output("written", "children", allow_duplicate=True),
        Output("write", "disabled", allow_duplicate=True),
        Input("write", "n_clicks"),
        State("network", "value"),
        State("settings", "data"),
        State("write-as", "value"),
        State("difference", "children"),
        State("moved", "data"),
        prevent_initial_call=True,
    )(lambda _clicks, *values: (write_settings(source, params, *values), True))
