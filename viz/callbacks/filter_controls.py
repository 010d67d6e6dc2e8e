"""Controls of the filter preview: scorer, threshold, dropped share and min_samples, for all classes or for one."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from dash import Dash, Input, Output, State, ctx, no_update

from pipeline.errors import InputError
from pipeline.scoring.base import Space
from viz import layout
from viz.callbacks.embedding import require_generation
from viz.callbacks.url import read_settings
from viz.data import Points, Source
from viz.filter_settings import (
    AS_FILTERED,
    MAX_MIN_SAMPLES,
    FilterSettings,
    Limit,
    class_thresholds,
    dbscan_settings,
    default_threshold,
    suspicion_values,
    threshold_for,
)
from viz.number_ranges import RANGES, number_problem
from viz.state import make_map_state, settings_from_json, settings_to_json

_SLIDER_STEPS = 500

UNITS: Mapping[Space, str] = {"embedding": "units of the embedding", "components": "units of the components"}
"""Unit of distances in each space."""


def changed_settings(
    source: Source, points: Points, settings: FilterSettings, label: int | None, control: str, value: Any
) -> FilterSettings:
    """Return the settings after one control has moved.

    Args:
        source: of the images.
        points: of the network.
        settings: before.
        label: class of the controls; None for all.
        control: `scorer`, `threshold`, `share` (in percent), `min_samples` or `reset`.
        value: of that control.

    Raises:
        InputError: the scorer cannot score these images.
    """
    limit = settings.limit_for(label)
    match control:
        case "reset":
            return FilterSettings(limit=Limit(min_samples=_filter_min_samples(points)))
        case "scorer":
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
    values, threshold = suspicion_values(source, points, settings), threshold_of(source, points, settings, label)
    finite = values[np.isfinite(values)]
    greatest = max(2 * threshold, float(np.quantile(finite, 0.99)) if len(finite) else 0.0)
    step = 10.0 ** math.floor(math.log10(greatest / _SLIDER_STEPS))
    noise = make_map_state(source, points.network, settings_to_json(settings)).preview.noise
    chosen = noise if label is None else noise[points.labels == label]
    clustering = dbscan_settings(points, settings, label)
    return {
        "settings": settings_to_json(settings),
        "scorer": settings.scorer_choice,
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
        control: that moved: `network`, `scope` or one of those of `changed_settings`; None if none moved.
        value: of that control.
        link: query of the URL of the page.
    """
    try:
        points = source.points(network)
        label = scope if scope in points.classes else None
        if settings_json is None:
            return _initial_controls(source, points, label, link)
        settings = settings_from_json(settings_json)
        if control == "network":
            # A radius has a meaning in one embedding only.
            settings = FilterSettings(
                scorer_choice=settings.scorer_choice, limit=Limit(min_samples=settings.limit.min_samples)
            )
        elif control in ("scorer", "threshold", "share", "min_samples", "reset"):
            settings = changed_settings(source, points, settings, label, control, value)
        return {**controls(source, points, settings, label), "scope": _shown_scope(label)}
    except InputError as error:
        # The map reports missing artifacts; errors of this scorer alone are shown here.
        unchanged = dict.fromkeys(_OF_ADJUST, no_update)
        scorer_choice = (settings_json or {}).get("scorer_choice", AS_FILTERED)
        blank: dict[str, Any] = (
            _BLANK | {"settings": settings_to_json(FilterSettings(scorer_choice=scorer_choice))}
            if control == "network"
            else {}
        )
        return unchanged | blank | {"used": str(error), "scorer": scorer_choice}


def control_outputs(
    source: Source,
    network: str,
    settings_json: Mapping[str, Any] | None,
    scope: int | None,
    control: str | None,
    value: Any,
    *,
    link: str = "",
) -> dict[str, Any]:
    """Return the answer of `adjust` with a message about a bad number, which changes nothing.

    The answer has `moved` too, the control and value that set the threshold last: see `params_dialog.initial_kind`.
    """
    if control is not None and control in RANGES:
        if problem := number_problem(control, value):
            return dict.fromkeys(_OUTPUTS, no_update) | {"number_problem": problem}
        # The browser sends 1e20 as an integer, which no answer can hold.
        value = int(value) if RANGES[control].integer else float(value)
    moved: Any = no_update
    if control in ("threshold", "share"):
        moved = {"control": control, "value": value}
    elif control in ("scorer", "network", "reset", "min_samples"):
        moved = None
    answer = adjust(source, network, settings_json, scope, control, value, link=link)
    threshold = answer["threshold"]
    return answer | {
        # Few digits fit into the box.
        "threshold_box": float(f"{threshold:.6g}") if isinstance(threshold, float) else threshold,
        "share_box": answer["share"],
        "number_problem": "",
        "moved": moved,
    }


def _initial_controls(source: Source, points: Points, label: int | None, link: str) -> dict[str, Any]:
    """Return the controls with the settings of the link, or with those of the filter and the error of the link."""
    problem = ""
    start = changed_settings(source, points, FilterSettings(), None, "reset", None)
    try:
        settings = settings_from_json(read_settings(link))
        answer = controls(source, points, start if settings == FilterSettings() else settings, label)
    except InputError as error:
        answer, problem = controls(source, points, start, label), f"{error}. "
    return {**answer, "used": problem + answer["used"], "scope": _shown_scope(label)}


def _shown_scope(label: int | None) -> Any:
    return layout.ALL if label is None else no_update


# For a network without artifacts, so that no value of the network before remains.
_BLANK: dict[str, Any] = {"threshold": None, "share": None, "unit": "Threshold"}
# A control that moves is not set. A range that grew with the threshold would run away.
_UNCHANGED_WHILE_DRAGGED = {
    "threshold": ("threshold", "min", "max", "step"),
    "threshold-box": ("threshold_box",),
    "share": ("share",),
    "share-box": ("share_box",),
    "min_samples": ("min_samples",),
}
_OF_ADJUST = {
    "settings": Output("settings", "data"),
    "scorer": Output("scorer", "value"),
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
_OUTPUTS = _OF_ADJUST | {
    "threshold_box": Output("threshold-box", "value"),
    "share_box": Output("share-box", "value"),
    "number_problem": Output("number-problem", "children"),
    "moved": Output("moved", "data"),
}


def register(app: Dash, source: Source) -> None:
    """Register the callbacks."""

    @app.callback(
        output=_OUTPUTS,
        inputs={
            "network": Input("network", "value"),
            "scope": Input("scope", "value"),
            "values": {
                "scorer": Input("scorer", "value"),
                "threshold": Input("threshold", "value"),
                "threshold-box": Input("threshold-box", "value"),
                "share": Input("share", "value"),
                "share-box": Input("share-box", "value"),
                "min_samples": Input("min_samples", "value"),
                "reset": Input("reset", "n_clicks"),
            },
            "settings_json": State("settings", "data"),
            "link": State("url", "search"),
            "plotted": State("plotted", "data"),
        },
    )
    def _adjust(
        network: str, scope: int, values: dict[str, Any], settings_json: Any, link: str, plotted: Any
    ) -> dict[str, Any]:
        require_generation(source, network, plotted)
        triggered = str(ctx.triggered_id) if settings_json is not None else None
        # A slider and its box set the same number.
        control = None if triggered is None else triggered.removesuffix("-box")
        answer = control_outputs(
            source, network, settings_json, scope, control, values.get(str(triggered)), link=link or ""
        )
        return answer | dict.fromkeys(_UNCHANGED_WHILE_DRAGGED.get(str(triggered), ()), no_update)


def threshold_of(source: Source, points: Points, settings: FilterSettings, label: int | None) -> float:
    """Return the threshold of a class, or for None of the classes without a separate one."""
    return (
        default_threshold(source, points, settings)
        if label is None
        else float(class_thresholds(source, points, settings)[label])
    )


def _filter_min_samples(points: Points) -> int:
    """Return min_samples of the filter, or the largest of the page if it has more."""
    return min(int(points.scorer.get("min_samples", Limit().min_samples)), MAX_MIN_SAMPLES)


def _used(points: Points, settings: FilterSettings) -> str:
    used = f"The filter: {points.scorer['name']}"
    used += "" if points.eps is None else f", threshold {points.eps:.4g}"
    used += f": {points.is_noise.mean():.2%} dropped."
    return used + (f" Classes with separate settings: {len(settings.per_class)}." if settings.per_class else "")
