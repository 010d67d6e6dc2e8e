"""Training loss of every run at one batch size as thin lines, and the mean over them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plotly import graph_objects as go

from viz.figures.palette import LineKey, LineStyle
from viz.figures.rendering import plotly_layout, plotly_log_axis, plotly_text


@dataclass(frozen=True, kw_only=True)
class RunCurve:
    """One run.

    Attributes:
        name: tells it from the others of its line, e.g. its seed.
        points: (optimizer steps done, training loss in nats), ascending; where the loss is finite.
        diverged: whether it stopped after the last of them because its loss was not.
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
    """Plotly chart of the loss (log scale) over the steps; a cross ends a run that diverged."""
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
    """Without points where no run finished: the legend names the line all the same."""
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
