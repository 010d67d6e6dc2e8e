"""The matrix of labels against suggested labels, whose cells select images."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from dash import Dash, Input, Output, State, html, no_update

from pipeline.errors import InputError
from viz import components
from viz.callbacks.embedding import MAP_CONTROLS, MapControls, parse_controls, require_generation
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
    used = sorted({label for pair in counts for label in pair})
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


def pair_counts(state: MapState) -> dict[tuple[int, int], int]:
    """Return label and suggested label -> number of shown images, the most frequent pair first.

    Pairs without an image are left out: thousands of classes have millions of them.
    """
    points, n = state.points, len(state.points.class_names)
    pairs, counts = np.unique(points.labels[state.shown] * n + points.predicted[state.shown], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {divmod(pair, n): count for pair, count in zip(pairs[order].tolist(), counts[order].tolist(), strict=True)}


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

    @app.callback(
        Output("matrix", "children"), *(Input(*control) for control in MAP_CONTROLS), State("plotted", "data")
    )
    def _matrix(*values: Any) -> Any:
        *controls, plotted = values
        require_generation(source, controls[0], plotted)
        return matrix(source, parse_controls(controls))

    @app.callback(
        Output("selection", "data", allow_duplicate=True),
        Input("matrix-cell", "data"),
        *(State(*control) for control in MAP_CONTROLS),
        State("plotted", "data"),
        prevent_initial_call=True,
    )
    def _select(cell: Any, *values: Any) -> Any:
        *controls, plotted = values
        require_generation(source, controls[0], plotted)
        return select_cell(source, parse_controls(controls), cell)


def _cell(state: MapState, counts: Mapping[tuple[int, int], int], label: int, suggested: int) -> html.Td:
    n = counts.get((label, suggested), 0)
    if not n:
        return html.Td()
    return html.Td(_button(state, label, suggested, f"{n:,}"), className="same" if label == suggested else "")


def _pairs(state: MapState, counts: Mapping[tuple[int, int], int]) -> html.Table | html.P:
    differing = [(pair, count) for pair, count in counts.items() if pair[0] != pair[1]]
    if not differing:
        return components.empty("The suggested label of each shown image is its label.")
    names = state.points.class_names
    lines = [
        html.Tr(
            [
                html.Th(f"{names[label]} → {names[suggested]}", title=f"{names[label]} → {names[suggested]}"),
                html.Td(_button(state, label, suggested, f"{count:,}")),
            ]
        )
        for (label, suggested), count in differing[:MAX_PAIRS]
    ]
    return html.Table(html.Tbody(lines), className="pairs")


def _button(state: MapState, label: int, suggested: int, text: str) -> html.Button:
    names = state.points.class_names
    attributes: dict[str, Any] = {
        "data-label": str(label), "data-suggested": str(suggested), "data-generation": state.points.generation,
    }  # fmt: skip
    title = f"label {names[label]}, suggested label {names[suggested]}: {text}"
    return html.Button(text, className="cell", title=title, **attributes)
