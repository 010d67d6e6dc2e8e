"""A measured value against the batch size, one line per arm, with intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from plotly import graph_objects as go

from viz.figures.error_bars import bar_lengths, interval_text, log_axis_ends, plotly_line, sideways
from viz.figures.palette import LineKey, LineStyle
from viz.figures.rendering import matplotlib_style, plotly_layout, plotly_text


@dataclass(frozen=True, kw_only=True)
class BatchCurve:
    """One line: values at ascending batch sizes.

    Attributes:
        low, high: ends of the intervals; None where there is none.
        n: runs behind each value.
    """

    key: LineKey
    style: LineStyle
    label: str
    batch_sizes: Sequence[int]
    values: Sequence[float]
    low: Sequence[float | None]
    high: Sequence[float | None]
    n: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class PublishedValue:
    """A value that a paper states: a hollow marker in the look of its line. Those of one label share an entry."""

    style: LineStyle
    label: str
    batch_size: int
    value: float


def batch_chart(
    curves: Sequence[BatchCurve], *, y_title: str, zero_line: bool = False, published: Sequence[PublishedValue] = ()
) -> go.Figure:
    """Plotly chart with a logarithmic axis of batch sizes; values and `y_title` share their unit."""
    layout = plotly_layout(x_title="batch size (log scale)", y_title=y_title)
    sizes = _all_sizes(curves, published)
    layout["xaxis"] |= {"type": "log", "tickvals": sizes, "ticktext": [f"{size:,}" for size in sizes]}
    layout["xaxis"]["range"] = [math.log10(end) for end in log_axis_ends(sizes)]
    figure = go.Figure(layout=layout | {"showlegend": True})
    for position, curve in enumerate(curves):
        figure.add_trace(_plotly_trace(curve, sideways(position, len(curves))))
    for values in _by_label(published):
        figure.add_trace(_plotly_markers(values))
    if zero_line:
        figure.add_hline(y=0, line={"color": "#888888", "width": 1})
    return figure


def batch_figure(
    curves: Sequence[BatchCurve], *, y_title: str, zero_line: bool = False, published: Sequence[PublishedValue] = ()
) -> Figure:
    """The same as a matplotlib figure for papers."""
    with matplotlib_style():
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        sizes = _all_sizes(curves, published)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=45 if len(sizes) > 8 else 0)
        axes.minorticks_off()
        axes.set_xlim(*log_axis_ends(sizes))
        axes.set(xlabel="batch size", ylabel=y_title)
        if zero_line:
            axes.axhline(0, color="#888888", linewidth=1)
        for position, curve in enumerate(curves):
            style, shift = curve.style, sideways(position, len(curves))
            axes.errorbar(
                [size * shift for size in curve.batch_sizes],
                curve.values,
                yerr=bar_lengths(curve.values, curve.low, curve.high),
                label=curve.label,
                color=style.color,
                marker=style.marker[1],
                linestyle=style.dash[1],
                markersize=5,
                capsize=3,
            )
        labelled = _by_label(published)
        for values in labelled:
            style = values[0].style
            axes.plot(
                [value.batch_size for value in values],
                [value.value for value in values],
                label=values[0].label,
                linestyle="none",
                marker=style.marker[1],
                markersize=8,
                markerfacecolor="none",
                markeredgecolor=style.color,
            )
        if labelled:
            # Published values stand apart from the lines, where a legend inside would cover them.
            figure.legend(fontsize=8, ncols=3, loc="outside lower center")
        elif curves:
            axes.legend(fontsize=8, ncols=1 + len(curves) // 8)
        return figure


def _plotly_trace(curve: BatchCurve, shift: float) -> Any:
    return go.Scatter(
        x=[size * shift for size in curve.batch_sizes],
        customdata=[
            [f"{size:,}", interval_text(low, high), n]
            for size, low, high, n in zip(curve.batch_sizes, curve.low, curve.high, curve.n, strict=True)
        ],
        hovertemplate="batch size %{customdata[0]}: %{y:.2f}, %{customdata[1]}, n = %{customdata[2]}",
        name=plotly_text(curve.label),
        **plotly_line(curve.style, curve.values, curve.low, curve.high),
    )


def _plotly_markers(values: Sequence[PublishedValue]) -> Any:
    style = values[0].style
    return go.Scatter(
        x=[value.batch_size for value in values],
        y=[value.value for value in values],
        customdata=[[f"{value.batch_size:,}"] for value in values],
        hovertemplate="batch size %{customdata[0]}: %{y:.2f}",
        name=plotly_text(values[0].label),
        mode="markers",
        marker={"symbol": f"{style.marker[0]}-open", "size": 12, "color": style.color, "line": {"width": 2}},
    )


def _by_label(published: Sequence[PublishedValue]) -> list[list[PublishedValue]]:
    groups: dict[str, list[PublishedValue]] = {}
    for value in published:
        groups.setdefault(value.label, []).append(value)
    return list(groups.values())


def _all_sizes(curves: Sequence[BatchCurve], published: Sequence[PublishedValue]) -> list[int]:
    return sorted({size for curve in curves for size in curve.batch_sizes} | {value.batch_size for value in published})
