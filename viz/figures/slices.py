"""Losses along slices through networks' weights: one panel per batch size, one line per arm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from viz.figures.palette import LineKey, LineStyle
from viz.figures.rendering import matplotlib_style

_COLUMNS = 3


@dataclass(frozen=True, kw_only=True)
class LossSlice:
    """Mean loss of the slices of one line.

    Attributes:
        distances: from the weights, in units of the filters' norms, ascending.
        loss: in nats.
    """

    key: LineKey
    style: LineStyle
    distances: Sequence[float]
    loss: Sequence[float]


def slice_figure(panels: Mapping[str, Sequence[LossSlice]]) -> Figure:
    """A matplotlib figure with a shared axis of losses, by the panels' titles."""
    columns = max(1, min(_COLUMNS, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    with matplotlib_style():
        figure = Figure(figsize=(0.8 + 3.0 * columns, 0.8 + 2.4 * rows), layout="constrained")
        grid: Any = figure.subplots(rows, columns, sharey=True, squeeze=False)
        handles: dict[str, Any] = {}
        for axes, (title, curves) in zip(grid.flat, panels.items(), strict=False):
            axes.set_title(title)
            for curve in curves:
                (handles[str(curve.key)],) = axes.plot(
                    curve.distances, curve.loss, color=curve.style.color, linestyle=curve.style.dash[1], linewidth=1.2
                )
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        figure.supxlabel("distance along the direction (norms of the filters)", fontsize="medium")
        figure.supylabel("loss (nats)", fontsize="medium")
        if handles:
            figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4, fontsize=8)
        return figure
