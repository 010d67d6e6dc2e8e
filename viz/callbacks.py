"""What the page answers, as plain functions, and which control asks for it."""

import math
from typing import Any

import numpy as np
from dash import Dash, Input, Output, State, ctx, no_update
from plotly import graph_objects as go

from pipeline.errors import InputError
from pipeline.selection.budgets import threshold_for_share
from viz import layout
from viz.data import Source, live_keep
from viz.figures.explorer import explorer_map

_SLIDER_STEPS = 500


def network_controls(
    source: Source, network: str, min_samples: int
) -> tuple[list[dict[str, Any]], float, float, float]:
    """Class picker's options; greatest value, step and value of the eps slider.

    The slider goes from almost everything being noise to twice the filter's radius, and at least to
    where one image in a hundred is left as noise. Where the filter used none, it stands where DBSCAN
    would drop as many.
    """
    try:
        points = source.points(network)
        radii = source.radii(network, min_samples)
    except InputError:
        # The map, which is asked at the same time, says why.
        return [layout.EVERY_CLASS], 1.0, 0.01, 1.0
    finite = radii[np.isfinite(radii)]
    eps = points.eps or threshold_for_share(radii, points.noise_share).value
    greatest = max(2 * eps, float(np.quantile(finite, 0.99)) if len(finite) else 0.0)
    options = [layout.EVERY_CLASS]
    options += [{"label": name, "value": index} for index, name in enumerate(points.class_names)]
    step = 10.0 ** math.floor(math.log10(greatest / _SLIDER_STEPS))
    return options, math.ceil(greatest / step) * step, step, eps


def explore(
    source: Source,
    network: str,
    chosen: int | None,
    coloring: str,
    eps: float | None,
    min_samples: int | None,
    *,
    zoom: dict[str, Any] | None = None,
) -> tuple[Any, Any, Any]:
    """The map, the table beside it, and a message in their place if they cannot be had.

    Args:
        chosen: a class, or `layout.ALL_CLASSES`; None where the network just chosen lacks the class.
        eps, min_samples: None while what was typed is not allowed; then nothing changes.
        zoom: plotly's last event about the axes, which is kept.
    """
    if eps is None or min_samples is None or not 1 <= min_samples <= layout.MOST_MIN_SAMPLES:
        return no_update, no_update, no_update
    try:
        points = source.points(network)
        radii = source.radii(network, min_samples)
    except InputError as error:
        return (
            go.Figure(layout={"template": "none", "xaxis_visible": False, "yaxis_visible": False}),
            None,
            (layout.problem(str(error))),
        )
    keep, noise = live_keep(points, radii, eps)
    figure = explorer_map(
        points.coordinates,
        points.labels,
        keep,
        points.class_names,
        coloring=coloring,
        only_class=chosen if chosen in range(len(points.class_names)) else None,
        view=network,
    )
    for axis in ("xaxis", "yaxis"):
        ends = [(zoom or {}).get(f"{axis}.range[{end}]") for end in (0, 1)]
        if None not in ends:
            figure.layout[axis].range = ends
    used = points.scorer if points.eps is None else f"eps {points.eps:.4g}"
    setting = f"at eps {eps:.4g}, min_samples {min_samples} (the filter used {used})"
    return figure, layout.class_table(points, keep, noise, setting=setting), None


def hover(source: Source, event: dict[str, Any] | None, network: str) -> tuple[bool, Any, Any]:
    """Whether the tooltip shows, where, and what."""
    row = _row_of(event)
    if event is None or row is None:
        return False, no_update, no_update
    try:
        points = source.points(network)
    except InputError:
        return False, no_update, no_update
    if row >= len(points.keep):
        return False, no_update, no_update
    return True, event["points"][0].get("bbox"), layout.tooltip(points, row)


def choose(source: Source, event: dict[str, Any] | None, network: str) -> Any:
    """The card about a clicked point; a hint before any click."""
    row = _row_of(event)
    if row is None:
        return layout.hint()
    try:
        points = source.points(network)
    except InputError as error:
        return layout.problem(str(error))
    return layout.card(points, row) if row < len(points.keep) else layout.hint()


def register(app: Dash, source: Source) -> None:
    """Tie the functions above to the page's controls."""
    app.callback(
        Output("class", "options"),
        Output("eps", "max"),
        Output("eps", "step"),
        Output("eps", "value"),
        Input("network", "value"),
        State("min_samples", "value"),
    )(lambda network, min_samples: network_controls(source, network, min_samples or 1))
    app.callback(
        Output("map", "figure"),
        Output("table", "children"),
        Output("problem", "children"),
        Input("network", "value"),
        Input("class", "value"),
        Input("coloring", "value"),
        Input("eps", "value"),
        Input("min_samples", "value"),
        State("map", "relayoutData"),
    )(lambda *values: explore(source, *values[:-1], zoom=None if ctx.triggered_id == "network" else values[-1]))
    app.callback(
        Output("tooltip", "show"),
        Output("tooltip", "bbox"),
        Output("tooltip", "children"),
        Input("map", "hoverData"),
        State("network", "value"),
    )(lambda event, network: hover(source, event, network))
    app.callback(Output("card", "children"), Input("map", "clickData"), Input("network", "value"))(
        lambda event, network: choose(source, event, network)
    )


def _row_of(event: dict[str, Any] | None) -> int | None:
    """The row of the point that a hover or click event is about."""
    row = event["points"][0].get("customdata") if event and event.get("points") else None
    return row if isinstance(row, int) and row >= 0 else None
