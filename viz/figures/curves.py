"""The curve that a threshold is read from."""

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects as go

from viz.figures.palette import SERIES
from viz.figures.rendering import plotly_layout

CURVE_HEIGHT = 190
"""Pixels."""

# More points than pixels show nothing more.
_MOST_DRAWN = 400


def threshold_curve(ordered: NDArray[np.float64], threshold: float, *, title: str) -> go.Figure:
    """Ascending values against their rank in percent, with a line at the threshold.

    Args:
        ordered: (n,) ascending; infinite ones are left out.
        title: what the values are, with their unit.
    """
    finite = ordered[np.isfinite(ordered)]
    chosen = np.unique(np.linspace(0, max(0, len(finite) - 1), _MOST_DRAWN).astype(np.int64))[: len(finite)]
    ranks = 100 * (chosen + 1) / max(1, len(ordered))
    layout = plotly_layout(x_title="images, in ascending order (%)", y_title=title, height=CURVE_HEIGHT)
    layout["margin"] = {"l": 46, "r": 8, "t": 8, "b": 38}
    layout |= {"showlegend": False, "font": layout["font"] | {"size": 11}}
    for axis in ("xaxis", "yaxis"):
        layout[axis]["title"]["font"] = {"size": 11}
    figure = go.Figure(layout=layout)
    figure.add_trace(
        go.Scatter(
            x=ranks, y=finite[chosen], mode="lines", line={"color": SERIES[0]},
            hovertemplate="%{x:.1f} % at most %{y:.4g}<extra></extra>",
        )
    )  # fmt: skip
    figure.add_hline(y=threshold, line={"color": SERIES[1], "dash": "dash"})
    return figure
