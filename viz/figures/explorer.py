"""The interactive map: every image a point, coloured by class or by what the filter does with it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go

from viz.figures.palette import SERIES, class_color
from viz.figures.rendering import plotly_layout, plotly_text

COLORINGS = {"decision": "kept or dropped", "class": "class"}
"""What the points' colours can tell: key -> name."""

# Beyond this many classes, those of one colour share a trace and have no entry in the legend.
_MOST_NAMES = 20
_MARGIN = 0.04


def explorer_map(
    xy: NDArray[np.floating[Any]],
    labels: NDArray[np.int64],
    keep: NDArray[np.bool_],
    class_names: Sequence[str],
    *,
    coloring: str,
    only_class: int | None = None,
    view: str,
) -> go.Figure:
    """WebGL scatter; the custom data of each point is its row.

    Axes are left out: the coordinates of a t-SNE map have no unit and no direction.

    Args:
        xy: (N, 2) coordinates.
        labels: (N,) indices into `class_names`.
        keep: (N,) False for what is dropped.
        coloring: a key of `COLORINGS`.
        only_class: the one class to show; None shows all.
        view: what readers hide in the legend stays hidden over redrawing as long as this stays the same.
    """
    assert coloring in COLORINGS, coloring
    shown = np.ones(len(labels), dtype=bool) if only_class is None else labels == only_class
    groups = _by_decision(keep) if coloring == "decision" else _by_class(labels, class_names)
    layout = plotly_layout(x_title="", y_title="") | {"margin": {"l": 0, "r": 0, "t": 32, "b": 0}}
    # The range is that of all images, so that choosing a class does not move the others' places.
    axis = {"visible": False, "constrain": "domain"}
    layout["xaxis"] = {**axis, "autorangeoptions": {"include": _range(xy[:, 0])}}
    layout["yaxis"] = {**axis, "autorangeoptions": {"include": _range(xy[:, 1])}, "scaleanchor": "x"}
    layout |= {"height": None, "uirevision": view, "showlegend": True, "dragmode": "pan", "hovermode": "closest"}
    layout["legend"] |= {"itemsizing": "constant", "y": 1.0}
    figure = go.Figure(layout=layout)
    size = float(np.clip(600 / np.sqrt(max(1, len(xy))), 3, 8))
    for name, members, color in groups:
        rows = np.flatnonzero(members & shown)
        if len(rows):
            figure.add_trace(_trace(xy, rows, name, color, size))
    return figure


def _by_decision(keep: NDArray[np.bool_]) -> list[tuple[str, NDArray[np.bool_], str]]:
    # What is drawn last lies above: the few that go.
    return [("kept", keep, SERIES[0]), ("dropped", ~keep, SERIES[1])]


def _by_class(labels: NDArray[np.int64], class_names: Sequence[str]) -> list[tuple[str, NDArray[np.bool_], str]]:
    if len(class_names) <= _MOST_NAMES:
        return [(name, labels == index, class_color(index)) for index, name in enumerate(class_names)]
    colors = [class_color(index) for index in range(len(class_names))]
    return [
        ("", np.isin(labels, [index for index, other in enumerate(colors) if other == color]), color)
        for color in dict.fromkeys(colors)
    ]


def _trace(xy: NDArray[np.floating[Any]], rows: NDArray[np.int64], name: str, color: str, size: float) -> go.Scattergl:
    return go.Scattergl(
        x=xy[rows, 0].astype(np.float32),
        y=xy[rows, 1].astype(np.float32),
        # A list: Dash does not find single values in an encoded array.
        customdata=rows.tolist(),
        mode="markers",
        name=plotly_text(name),
        showlegend=bool(name),
        marker={"color": color, "size": size, "opacity": 0.8},
        # The event comes without a text of plotly's own; the app shows the picture.
        hoverinfo="none",
    )


def _range(values: NDArray[np.floating[Any]]) -> list[float]:
    low, high = float(values.min()), float(values.max())
    margin = _MARGIN * (high - low) or 1.0
    return [low - margin, high + margin]
