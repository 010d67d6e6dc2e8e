"""Charts of the training loss of single runs, and of slices of the loss around trained weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from plotly import graph_objects as go

from pipeline.figures.curves import grid_shape, panel_figure
from pipeline.figures.rendering import plotly_layout, plotly_log_axis, plotly_text
from pipeline.figures.style import LineKey, LineStyle


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
