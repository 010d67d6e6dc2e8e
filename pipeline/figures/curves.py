"""Charts of curves: sorted values with their threshold, losses and accuracies over training, and slices of the loss.

Losses of training are of means with their seeds, or of single runs. Slices are around trained weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from plotly import graph_objects as go
from plotly import subplots

from pipeline.figures.palette import MARK, SERIES
from pipeline.figures.rendering import (
    matplotlib_log_axis,
    matplotlib_style,
    plotly_layout,
    plotly_log_axis,
    plotly_text,
)
from pipeline.figures.style import LineKey, LineStyle

CURVE_HEIGHT = 190
"""Height of a curve, in pixels."""

_MAX_DRAWN = 400
"""Number of points that a chart can resolve."""

X_TITLES = {"examples": "training images processed", "steps": "optimizer steps", "epochs": "epochs"}
"""Titles of the horizontal axis, by `x_axis` of a study."""

_X_UNITS = {"examples": "%{x:,} images", "steps": "step %{x:,}", "epochs": "epoch %{x:.4g}"}
_COLUMNS = 3
_PANEL_HEIGHT = 230

PanelLine = tuple[LineKey, LineStyle, Sequence[float], Sequence[float]]
"""Key, style, x and y of a line."""


def threshold_curve(ordered: NDArray[np.float64], threshold: float, *, title: str) -> go.Figure:
    """Return a chart of ascending values against their rank in percent, with a line at the threshold.

    Args:
        ordered: (n,) ascending; infinite ones are left out.
        title: name of the values, with their unit.
    """
    finite = ordered[np.isfinite(ordered)]
    chosen = np.unique(np.linspace(0, max(0, len(finite) - 1), _MAX_DRAWN).astype(np.int64))[: len(finite)]
    ranks = 100 * (chosen + 1) / max(1, len(ordered))
    layout = plotly_layout(x_title="images, in ascending order (%)", y_title="", height=CURVE_HEIGHT)
    layout["margin"] = {"l": 46, "r": 8, "t": 26, "b": 38}
    layout |= {"showlegend": False, "font": layout["font"] | {"size": 11}}
    layout["xaxis"]["title"]["font"] = {"size": 11}
    figure = go.Figure(layout=layout)
    # Above the chart: along the axis, which is short, a long name would be cut.
    figure.add_annotation(
        text=title, x=0, y=1, xref="paper", yref="paper", xanchor="left", yanchor="bottom", xshift=-44,
        showarrow=False, font={"size": 11},
    )  # fmt: skip
    figure.add_trace(
        go.Scatter(
            x=ranks, y=finite[chosen], mode="lines", line={"color": SERIES[0]},
            hovertemplate="%{x:.1f} % at most %{y:.4g}<extra></extra>",
        )
    )  # fmt: skip
    figure.add_hline(y=threshold, line={"color": MARK, "dash": "dash"})
    return figure


class LearningAxis(NamedTuple):
    """The vertical axis that all panels share."""

    title: str
    log: bool


LOSS = LearningAxis("training loss (nats)", log=True)
TEST_LOSS = LearningAxis("test loss (nats)", log=True)
TOP1 = LearningAxis("test top-1 (%)", log=False)


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """One line of a panel: means over the seeds.

    Attributes:
        x: in the unit of the horizontal axis, ascending.
        values: in the unit of the axis.
    """

    key: LineKey
    style: LineStyle
    x: Sequence[float]
    values: Sequence[float]


def learning_chart(
    panels: Mapping[str, Sequence[LearningCurve]], axis: LearningAxis, *, x_axis: str = "examples"
) -> go.Figure:
    """Return plotly panels with a shared vertical axis, by their titles: one per batch size, one line per arm.

    Args:
        x_axis: one of `X_TITLES`.
    """
    rows, columns = grid_shape(len(panels))
    figure = subplots.make_subplots(
        rows=rows,
        cols=columns,
        shared_yaxes="all",
        subplot_titles=[plotly_text(name) for name in panels],
        # One for all panels: below each of three it would be cut on a phone.
        x_title=X_TITLES[x_axis],
        horizontal_spacing=0.03,
        vertical_spacing=min(0.3, 70 / (_PANEL_HEIGHT * rows)),
    )
    shared = plotly_layout(x_title="", y_title="", height=110 + _PANEL_HEIGHT * rows)
    horizontal, vertical = shared.pop("xaxis"), shared.pop("yaxis")
    shared["margin"]["t"] = 80
    shared["legend"]["y"] = 1 + 30 / (_PANEL_HEIGHT * rows)
    figure.update_layout(shared | {"showlegend": True})
    figure.update_annotations(font_size=13)
    figure.update_annotations(font_size=14, selector={"text": X_TITLES[x_axis]})
    figure.update_xaxes(horizontal | {"rangemode": "tozero", "nticks": 5})
    figure.update_yaxes(vertical | (plotly_log_axis(_values(panels)) if axis.log else {}))
    figure.update_yaxes(title_text=axis.title, col=1)
    named: set[LineKey] = set()
    for position, curves in enumerate(panels.values()):
        for curve in curves:
            trace = _plotly_trace(curve, in_legend=curve.key not in named, unit=_X_UNITS[x_axis])
            figure.add_trace(trace, row=position // columns + 1, col=position % columns + 1)
            named.add(curve.key)
    return figure


def learning_figure(
    panels: Mapping[str, Sequence[LearningCurve]], axis: LearningAxis, *, x_axis: str = "examples"
) -> Figure:
    """Return the panels as a matplotlib figure for papers; arguments as of `learning_chart`."""
    rows, columns = grid_shape(len(panels))
    return panel_figure(
        {name: [(curve.key, curve.style, curve.x, curve.values) for curve in panels[name]] for name in panels},
        size=(3.2 * columns, 0.6 + 2.4 * rows),
        x_title=X_TITLES[x_axis],
        y_title=axis.title,
        log_y=axis.log,
    )


def panel_figure(
    panels: Mapping[str, Sequence[PanelLine]],
    *,
    size: tuple[float, float],
    x_title: str,
    y_title: str,
    log_y: bool = False,
) -> Figure:
    """Return matplotlib panels with a shared vertical axis and a shared legend.

    Args:
        panels: title -> lines.
        size: width and height in inches.
    """
    rows, columns = grid_shape(len(panels))
    with matplotlib_style():
        figure = Figure(figsize=size, layout="constrained")
        grid: Any = figure.subplots(rows, columns, sharey=True, squeeze=False)
        handles: dict[str, Any] = {}
        for axes, (title, lines) in zip(grid.flat, panels.items(), strict=False):
            axes.set_title(title)
            for key, style, x, y in lines:
                # A line of one point would be invisible.
                marker = "." if len(x) == 1 else None
                (handles[str(key)],) = axes.plot(
                    x, y, color=style.color, linestyle=style.dash[1], linewidth=1.2, marker=marker
                )
            if log_y:
                matplotlib_log_axis(axes, "y", [value for lines in panels.values() for *_, y in lines for value in y])
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        figure.supxlabel(x_title, fontsize="medium")
        figure.supylabel(y_title, fontsize="medium")
        if handles:
            figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4, fontsize=8)
        return figure


def _plotly_trace(curve: LearningCurve, *, in_legend: bool, unit: str) -> Any:
    return go.Scatter(
        x=list(curve.x),
        y=list(curve.values),
        name=plotly_text(str(curve.key)),
        legendgroup=str(curve.key),
        showlegend=in_legend,
        mode="lines+markers" if len(curve.values) == 1 else "lines",
        line={"color": curve.style.color, "dash": curve.style.dash[0], "width": 2},
        hovertemplate=f"{unit}: %{{y:.4f}}",
    )


def _values(panels: Mapping[str, Sequence[LearningCurve]]) -> list[float]:
    return [value for curves in panels.values() for curve in curves for value in curve.values]


def grid_shape(panels: int) -> tuple[int, int]:
    """Return the rows and columns of the grid of panels."""
    columns = max(1, min(_COLUMNS, panels))
    return max(1, -(-panels // columns)), columns


@dataclass(frozen=True, kw_only=True)
class RunCurve:
    """One run.

    Attributes:
        name: distinguishes the run from the others of its line, e.g. its seed.
        points: (optimizer steps done, training loss in nats), ascending; only finite losses.
        diverged: whether the run stopped after the last point because its loss was not finite.
    """

    name: str
    points: Sequence[tuple[int, float]]
    diverged: bool


@dataclass(frozen=True, kw_only=True)
class RunCurves:
    """The runs of one line.

    Attributes:
        mean: (optimizer steps done, training loss in nats) over the runs that finished; may be empty.
    """

    key: LineKey
    style: LineStyle
    mean: Sequence[tuple[int, float]]
    runs: Sequence[RunCurve]


def run_chart(lines: Sequence[RunCurves]) -> go.Figure:
    """Return a plotly chart of each run's loss (log scale) over steps, and their mean; a cross ends a diverged run."""
    layout = plotly_layout(x_title="optimizer steps", y_title="training loss (nats, log scale)")
    layout["xaxis"] |= {"rangemode": "tozero"}
    layout["yaxis"] |= plotly_log_axis(loss for line in lines for run in line.runs for _, loss in run.points)
    figure = go.Figure(layout=layout | {"showlegend": True, "hovermode": "closest"})
    for line in lines:
        figure.add_traces([_run_trace(line.key, run, line.style) for run in line.runs])
    for line in lines:
        figure.add_trace(_mean_trace(line))
    return figure


def _run_trace(key: LineKey, run: RunCurve, style: LineStyle) -> Any:
    alone = len(run.points) == 1
    return go.Scatter(
        **_line(key, run.points, style, width=1),
        opacity=0.45,
        showlegend=False,
        mode="lines+markers" if run.diverged or alone else "lines",
        marker={
            "color": style.color,
            "symbol": "x" if run.diverged else style.marker[0],
            "size": [0] * (len(run.points) - 1) + [9],
        },
        hovertemplate=f"{plotly_text(run.name)}, step %{{x:,}}: %{{y:.4f}}",
    )


def _mean_trace(line: RunCurves) -> Any:
    """Return the mean line; without points if no run finished, so that the legend still names it."""
    return go.Scatter(
        **_line(line.key, line.mean, line.style, width=2.5),
        mode="lines+markers" if len(line.mean) == 1 else "lines",
        hovertemplate="mean of the finished, step %{x:,}: %{y:.4f}",
    )


def _line(key: LineKey, points: Sequence[tuple[int, float]], style: LineStyle, *, width: float) -> dict[str, Any]:
    return {
        "x": [step for step, _ in points],
        "y": [loss for _, loss in points],
        "name": plotly_text(str(key)),
        "legendgroup": str(key),
        "line": {"color": style.color, "dash": style.dash[0], "width": width},
    }


@dataclass(frozen=True, kw_only=True)
class LossSlice:
    """One line of a panel: the mean loss of slices.

    Attributes:
        distances: from the weights, in units of the filters' norms, ascending.
        loss: in nats.
    """

    key: LineKey
    style: LineStyle
    distances: Sequence[float]
    loss: Sequence[float]


def slice_figure(panels: Mapping[str, Sequence[LossSlice]]) -> Figure:
    """Return a matplotlib figure with a shared loss axis: one panel per batch size, by title, one line per arm."""
    rows, columns = grid_shape(len(panels))
    return panel_figure(
        {title: [(curve.key, curve.style, curve.distances, curve.loss) for curve in panels[title]] for title in panels},
        size=(0.8 + 3.0 * columns, 0.8 + 2.4 * rows),
        x_title="distance along the direction (norms of the filters)",
        y_title="loss (nats)",
    )
