"""The matrix of labels against suggested labels, whose cells select images."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from dash import Dash, Input, Output, State, html, no_update
from numpy.typing import NDArray

from pipeline.errors import InputError
from viz.callbacks.embedding import MAP_CONTROLS, MapControls, parse_controls
from viz.callbacks.overrides import current_points
from viz.data import Source
from viz.state import MapState

MAX_CLASSES = 12
"""Number of classes above which the page lists pairs instead of a matrix."""

MAX_PAIRS = 30
"""Number of pairs that the page lists, those with the most images first."""


def matrix(source: Source, map_controls: MapControls) -> Any:
    """Return the matrix of the shown images, or with many classes the most frequent pairs that differ."""
    try:
        state = map_controls.state(source)
    except InputError:
        # The map shows the error.
        return None
    counts = pair_counts(state)
    used = np.flatnonzero(counts.any(axis=0) | counts.any(axis=1)).tolist()
    heading = html.Div("Label against suggested label: click a cell to select its images", className="name")
    if len(used) > MAX_CLASSES:
        return [heading, _pairs(state, counts)]
    names = state.points.class_names
    head = html.Tr([html.Th("label"), *(html.Th(names[label], title=f"suggested: {names[label]}") for label in used)])
    body = [
        html.Tr([html.Th(names[label], title=names[label]), *(_cell(state, counts, label, other) for other in used)])
        for label in used
    ]
    return [heading, html.Table([html.Thead(head), html.Tbody(body)])]


def pair_counts(state: MapState) -> NDArray[np.int64]:
    """Return the numbers of shown images (n_classes, n_classes) by label and suggested label."""
    points, n = state.points, len(state.points.class_names)
    pairs = points.labels[state.shown] * n + points.predicted[state.shown]
    return np.bincount(pairs, minlength=n * n).reshape(n, n)


def select_cell(source: Source, map_controls: MapControls, cell: Mapping[str, Any] | None) -> Any:
    """Select the shown images with a label and a suggested label.

    Args:
        source: of the images.
        map_controls: of the map.
        cell: `label` and `suggested`, indices of classes, and `generation` of the points on the page.
    """
    if not isinstance(cell, Mapping):
        return no_update
    label, suggested = cell.get("label"), cell.get("suggested")
    try:
        state, points = map_controls.state(source), current_points(source, cell.get("generation"))
    except InputError:
        # The map shows the error.
        return no_update
    # By type: True is an int in Python.
    if points is None or type(label) is not int or type(suggested) is not int:
        return no_update
    rows = np.flatnonzero(state.shown & (points.labels == label) & (points.predicted == suggested))
    return {"generation": points.generation, "rows": rows.tolist(), "graph": "matrix"}


def register(app: Dash, source: Source) -> None:
    """Register the callbacks; see assets/page.js for the clicks."""
    app.callback(Output("matrix", "children"), *(Input(*control) for control in MAP_CONTROLS))(
        lambda *values: matrix(source, parse_controls(values))
    )
    app.callback(
        Output("selection", "data", allow_duplicate=True),
        Input("matrix-cell", "data"),
        *(State(*control) for control in MAP_CONTROLS),
        prevent_initial_call=True,
    )(lambda cell, *values: select_cell(source, parse_controls(values), cell))


def _cell(state: MapState, counts: NDArray[np.int64], label: int, suggested: int) -> html.Td:
    n = int(counts[label, suggested])
    if not n:
        return html.Td()
    return html.Td(_button(state, label, suggested, f"{n:,}"), className="same" if label == suggested else "")


def _pairs(state: MapState, counts: NDArray[np.int64]) -> html.Table:
    differing = counts.copy()
    np.fill_diagonal(differing, 0)
    most = np.argsort(-differing, axis=None, kind="stable")[:MAX_PAIRS]
    pairs = [divmod(int(place), len(counts)) for place in most if differing.flat[place]]
    names = state.points.class_names
    lines = [
        html.Tr(
            [
                html.Th(f"{names[label]} → {names[suggested]}", title=f"{names[label]} → {names[suggested]}"),
                html.Td(_button(state, label, suggested, f"{differing[label, suggested]:,}")),
            ]
        )
        for label, suggested in pairs
    ]
    return html.Table(html.Tbody(lines), className="pairs")


def _button(state: MapState, label: int, suggested: int, text: str) -> html.Button:
    names = state.points.class_names
    attributes: dict[str, Any] = {
        "data-label": str(label), "data-suggested": str(suggested), "data-generation": state.points.generation,
    }  # fmt: skip
    title = f"label {names[label]}, suggested label {names[suggested]}: {text}"
    return html.Button(text, className="cell", title=title, **attributes)
