"""Controls of the filter preview: scorer, threshold, dropped share and min_samples, for all classes or for one."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from dash import Dash, Input, Output, State, ctx, no_update

from pipeline.errors import InputError
from pipeline.figures.curves import threshold_curve
from pipeline.figures.explorer import no_map
from pipeline.scoring.base import Space
from viz import components, layout
from viz.callbacks.url import read_link
from viz.data import Points, Source
from viz.filter_settings import (
    AS_FILTERED,
    FilterSettings,
    Limit,
    class_thresholds,
    dbscan_settings,
    default_threshold,
    sorted_distances,
    suspicion_values,
    threshold_for,
)
from viz.state import make_map_state, settings_from_json, settings_to_json

_SLIDER_STEPS = 500
# Half a step of the control `share-b`, 0.01 %.
_SAME_SHARE = 5e-5

UNITS: Mapping[Space, str] = {"embedding": "units of the embedding", "components": "units of the components"}
"""Unit of distances in each space."""


def changed(
    source: Source, points: Points, settings: FilterSettings, label: int | None, control: str, value: Any
) -> FilterSettings:
    """Return the settings after one control has moved.

    Args:
        source: of the images.
        points: of the network.
        settings: before.
        label: class of the controls; None for all.
        control: `judge` (the scorer), `threshold`, `share` (in percent), `min_samples` or `reset`.
        value: of that control.

    Raises:
        InputError: the scorer cannot score these images.
    """
    limit = settings.limit_for(label)
    match control:
        case "reset":
            return FilterSettings(limit=Limit(min_samples=_filter_min_samples(points)))
        case "judge":
            return FilterSettings(scorer_choice=value, limit=Limit(min_samples=_filter_min_samples(points)))
        case "threshold":
            return settings.with_limit(label, replace(limit, threshold=value))
        case "min_samples":
            return settings.with_limit(label, replace(limit, min_samples=value))
        case "share":
            values = suspicion_values(source, points, settings.with_limit(label, limit))
            chosen = values if label is None else values[points.labels == label]
            return settings.with_limit(label, replace(limit, threshold=threshold_for(chosen, value / 100)))
        case _:
            raise AssertionError(control)


def controls(source: Source, points: Points, settings: FilterSettings, label: int | None) -> dict[str, Any]:
    """Return the values of the controls: threshold of a class or all, its range, dropped share and the rest.

    The range of the threshold reaches at least twice the threshold, and the value that one image in a hundred exceeds.
    """
    values, threshold = suspicion_values(source, points, settings), _threshold(source, points, settings, label)
    finite = values[np.isfinite(values)]
    greatest = max(2 * threshold, float(np.quantile(finite, 0.99)) if len(finite) else 0.0)
    step = 10.0 ** math.floor(math.log10(greatest / _SLIDER_STEPS))
    noise = make_map_state(source, points.network, settings_to_json(settings)).preview.noise
    chosen = noise if label is None else noise[points.labels == label]
    clustering = dbscan_settings(points, settings, label)
    return {
        "rule": settings_to_json(settings),
        "judge": settings.scorer_choice,
        # A threshold is greater than 0.
        "min": step,
        "max": math.ceil(greatest / step) * step,
        "step": step,
        "threshold": threshold,
        "share": round(100 * float(chosen.mean()), 3),
        "min_samples": settings.limit_for(label).min_samples,
        "no_min_samples": settings.space is None,
        "unit": "Threshold of the scorer" if clustering is None else f"eps ({UNITS[clustering[0]]})",
        "used": _used(points, settings),
    }


def adjust(
    source: Source,
    network: str,
    settings_json: Mapping[str, Any] | None,
    scope: int | None,
    control: str | None,
    value: Any,
    *,
    link: str = "",
) -> dict[str, Any]:
    """Return the values of all controls after one has moved.

    Args:
        source: of the images.
        network: of the map.
        settings_json: settings so far; None on a new page, where the link may have settings.
        scope: class of the controls, or `layout.ALL`.
        control: that moved: `network`, `scope` or one of those of `changed`; None if none moved.
        value: of that control.
        link: query of the URL of the page.
    """
    try:
        points = source.points(network)
        label = scope if scope in points.classes else None
        if settings_json is None:
            return _opened(source, points, label, link)
        settings = settings_from_json(settings_json)
        if control == "network":
            # A radius has a meaning in one embedding only.
            settings = FilterSettings(
                scorer_choice=settings.scorer_choice, limit=Limit(min_samples=settings.limit.min_samples)
            )
        elif control in ("judge", "threshold", "share", "min_samples", "reset"):
            settings = changed(source, points, settings, label, control, value)
        return {**controls(source, points, settings, label), "scope": _shown_scope(label)}
    except InputError as error:
        # The map reports missing artifacts; errors of this scorer alone are shown here.
        unchanged = dict.fromkeys(_OUTPUTS, no_update)
        scorer_choice = settings_json["judge"] if settings_json else AS_FILTERED
        blank: dict[str, Any] = (
            _BLANK | {"rule": settings_to_json(FilterSettings(scorer_choice=scorer_choice))}
            if control == "network"
            else {}
        )
        return unchanged | blank | {"used": str(error), "judge": scorer_choice}


def _opened(source: Source, points: Points, label: int | None, link: str) -> dict[str, Any]:
    """Return the controls with the settings of the link, or with those of the filter and the error of the link."""
    problem = ""
    start = changed(source, points, FilterSettings(), None, "reset", None)
    try:
        settings = settings_from_json(read_link(link).get("rule"))
        answer = controls(source, points, start if settings == FilterSettings() else settings, label)
    except InputError as error:
        answer, problem = controls(source, points, start, label), f"{error}. "
    return {**answer, "used": problem + answer["used"], "scope": _shown_scope(label)}


def _shown_scope(label: int | None) -> Any:
    return layout.ALL if label is None else no_update


def summarize(
    source: Source, network: str, settings_json: Mapping[str, Any] | None, scope: int | None
) -> tuple[Any, Any]:
    """Return the curve of sorted distances with the threshold, and the table of classes."""
    try:
        state = make_map_state(source, network, settings_json)
        points, settings = state.points, state.settings
        label = scope if scope in points.classes else None
        current = _threshold(source, points, settings, label)
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


def settings_b(
    source: Source, view: str, network: str | None, scorer_choice: str, share: float | None, min_samples: int | None
) -> dict[str, Any] | None:
    """Return the second settings of a comparison as JSON; None outside that view, or while a control is empty."""
    if view != "compare" or not network or share is None or min_samples is None:
        return None
    try:
        points = source.points(network)
        settings = FilterSettings(scorer_choice=scorer_choice, limit=Limit(min_samples=min_samples))
        if scorer_choice != AS_FILTERED or abs(share / 100 - points.is_noise.mean()) > _SAME_SHARE:
            settings = changed(source, points, settings, None, "share", share)
    except InputError:
        return settings_to_json(FilterSettings(scorer_choice=scorer_choice, limit=Limit(min_samples=min_samples)))
    return settings_to_json(settings)


# For a network without artifacts, so that no value of the network before remains.
_BLANK: dict[str, Any] = {"threshold": None, "share": None, "unit": "Threshold"}
# A control that moves is not set. A range that grew with the threshold would run away.
_UNCHANGED_WHILE_DRAGGED = {
    "threshold": ("threshold", "min", "max", "step"),
    "share": ("share",),
    "min_samples": ("min_samples",),
}
_OUTPUTS = {
    "rule": Output("rule", "data"),
    "judge": Output("judge", "value"),
    "min": Output("threshold", "min"),
    "max": Output("threshold", "max"),
    "step": Output("threshold", "step"),
    "threshold": Output("threshold", "value"),
    "share": Output("share", "value"),
    "min_samples": Output("min_samples", "value"),
    "no_min_samples": Output("min_samples-row", "hidden"),
    "unit": Output("unit", "children"),
    "used": Output("used", "children"),
    "scope": Output("scope", "value"),
}


def register(app: Dash, source: Source) -> None:
    """Register the callbacks."""

    @app.callback(
        output=_OUTPUTS,
        inputs={
            "network": Input("network", "value"),
            "scope": Input("scope", "value"),
            "values": {
                "judge": Input("judge", "value"),
                "threshold": Input("threshold", "value"),
                "share": Input("share", "value"),
                "min_samples": Input("min_samples", "value"),
                "reset": Input("reset", "n_clicks"),
            },
            "settings_json": State("rule", "data"),
            "link": State("url", "search"),
        },
    )
    def _adjust(network: str, scope: int, values: dict[str, Any], settings_json: Any, link: str) -> dict[str, Any]:
        control = ctx.triggered_id if settings_json is not None else None
        value = values.get(str(control))
        if control in ("threshold", "share", "min_samples") and value is None:
            # The user is typing a number.
            return dict.fromkeys(_OUTPUTS, no_update)
        answer = adjust(source, network, settings_json, scope, control, value, link=link or "")
        return answer | dict.fromkeys(_UNCHANGED_WHILE_DRAGGED.get(str(control), ()), no_update)

    app.callback(
        Output("curve", "figure"),
        Output("table", "children"),
        Input("rule", "data"),
        Input("scope", "value"),
        Input("network", "value"),
        Input("edited", "data"),
    )(lambda settings_json, scope, network, _edited: summarize(source, network, settings_json, scope))
    app.callback(
        Output("rule-b", "data"),
        Input("view", "value"),
        Input("network-b", "value"),
        Input("judge-b", "value"),
        Input("share-b", "value"),
        Input("min_samples-b", "value"),
    )(lambda *values: settings_b(source, *values))


def _threshold(source: Source, points: Points, settings: FilterSettings, label: int | None) -> float:
    """Return the threshold of a class, or for None of the classes without a separate one."""
    return (
        default_threshold(source, points, settings)
        if label is None
        else float(class_thresholds(source, points, settings)[label])
    )


def _filter_min_samples(points: Points) -> int:
    return int(points.scorer.get("min_samples", Limit().min_samples))


def _used(points: Points, settings: FilterSettings) -> str:
    used = f"The filter used {points.scorer['name']}"
    used += "" if points.eps is None else f", threshold {points.eps:.4g}"
    used += f": {points.is_noise.mean():.2%} dropped."
    return used + (f" Classes with separate settings: {len(settings.per_class)}." if settings.per_class else "")
