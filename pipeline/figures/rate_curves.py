"""Charts of the best batch size against the learning rate, one line per arm and network, with intervals and seeds."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from plotly import graph_objects as go

from pipeline.figures.palette import MARK
from pipeline.figures.rendering import (
    bar_lengths,
    dodge_factor,
    interval_text,
    log_axis_ends,
    matplotlib_style,
    plotly_layout,
    plotly_line,
    plotly_text,
)
from pipeline.figures.style import LineKey, LineStyle

AT_END = "best of some seed is at an end of the sizes tried"
_Y_TITLE = "best batch size"


@dataclass(frozen=True, kw_only=True)
class RateCurve:
    """One line of a chart: best batch sizes in images at ascending learning rates.

    Attributes:
        sizes: geometric means of the seeds' best.
        low, high: ends of their intervals; None without an interval.
        of_seeds: each seed's best, by rate.
        at_end: by rate, whether some seed's best is the smallest or largest size tried.
    """

    key: LineKey
    style: LineStyle
    rates: Sequence[float]
    sizes: Sequence[float]
    low: Sequence[float | None]
    high: Sequence[float | None]
    of_seeds: Sequence[Sequence[float]]
    at_end: Sequence[bool]


def rate_chart(curves: Sequence[RateCurve], *, tried: Sequence[int]) -> go.Figure:
    """Return a plotly chart with logarithmic axes.

    Args:
        tried: all batch sizes tried, ascending.
    """
    layout = plotly_layout(x_title="learning rate (log scale)", y_title=f"{_Y_TITLE} (log scale)")
    for axis, values in (("xaxis", _rates(curves)), ("yaxis", tried)):
        layout[axis] |= {"type": "log", "tickvals": values, "ticktext": [f"{value:,}" for value in values]}
        layout[axis]["range"] = [math.log10(end) for end in log_axis_ends(values)]
    figure = go.Figure(layout=layout | {"showlegend": True})
    for position, curve in enumerate(curves):
        factor = dodge_factor(position, len(curves))
        figure.add_trace(_plotly_line(curve, factor))
        rates, sizes = _points(curve, factor)
        marker = {"symbol": curve.style.marker[0], "size": 5, "color": curve.style.color, "opacity": 0.35}
        figure.add_trace(
            go.Scatter(x=rates, y=sizes, mode="markers", marker=marker, showlegend=False, hoverinfo="skip")
        )
    if ends := list(_ends(curves)):
        marker = {"symbol": "x-thin", "size": 12, "line": {"width": 2, "color": MARK}}
        x, y = zip(*ends, strict=True)
        figure.add_trace(go.Scatter(x=x, y=y, mode="markers", marker=marker, name=AT_END, hoverinfo="skip"))
    return figure


def rate_figure(curves: Sequence[RateCurve], *, tried: Sequence[int]) -> Figure:
    """Return the chart as a matplotlib figure for papers."""
    with matplotlib_style():
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xscale("log")
        axes.set_yscale("log", base=2)
        rates = _rates(curves)
        axes.set_xticks(rates, [f"{rate:,}" for rate in rates])
        axes.set_yticks(tried, [f"{size:,}" for size in tried])
        axes.minorticks_off()
        axes.set_xlim(*log_axis_ends(rates))
        axes.set_ylim(*log_axis_ends(tried))
        axes.set(xlabel="learning rate", ylabel=_Y_TITLE)
        for position, curve in enumerate(curves):
            style, factor = curve.style, dodge_factor(position, len(curves))
            axes.errorbar(
                [rate * factor for rate in curve.rates],
                curve.sizes,
                yerr=bar_lengths(curve.sizes, curve.low, curve.high),
                label=str(curve.key),
                color=style.color,
                marker=style.marker[1],
                linestyle=style.dash[1],
                markersize=5,
                capsize=3,
            )
            axes.plot(
                *_points(curve, factor), linestyle="none", marker=style.marker[1], color=style.color, markersize=3,
                alpha=0.35,
            )  # fmt: skip
        if ends := list(_ends(curves)):
            # Above the lines, which it marks.
            axes.plot(
                *zip(*ends, strict=True), linestyle="none", marker="x", color=MARK, label=AT_END, zorder=3
            )  # fmt: skip
        figure.legend(fontsize=8, ncols=2, loc="outside lower center")
        return figure


def _plotly_line(curve: RateCurve, factor: float) -> Any:
    return go.Scatter(
        x=[rate * factor for rate in curve.rates],
        customdata=[
            [f"{rate:,}", interval_text(low, high, ",.0f"), ", ".join(f"{size:,.0f}" for size in of_seeds)]
            for rate, low, high, of_seeds in zip(curve.rates, curve.low, curve.high, curve.of_seeds, strict=True)
        ],
        hovertemplate="learning rate %{customdata[0]}: %{y:,.0f}, %{customdata[1]}, seeds %{customdata[2]}",
        name=plotly_text(str(curve.key)),
        **plotly_line(curve.style, curve.sizes, curve.low, curve.high),
    )


def _rates(curves: Sequence[RateCurve]) -> list[float]:
    return sorted({rate for curve in curves for rate in curve.rates})


def _points(curve: RateCurve, factor: float) -> tuple[list[float], list[float]]:
    """Return the rates and sizes of single seeds."""
    points = [
        (rate * factor, size) for rate, sizes in zip(curve.rates, curve.of_seeds, strict=True) for size in sizes
    ]  # fmt: skip
    return [rate for rate, _ in points], [size for _, size in points]


def _ends(curves: Sequence[RateCurve]) -> Iterator[tuple[float, float]]:
    """Return the rates and sizes of the points to mark."""
    for position, curve in enumerate(curves):
        factor = dodge_factor(position, len(curves))
        for rate, size, at_end in zip(curve.rates, curve.sizes, curve.at_end, strict=True):
            if at_end:
                yield rate * factor, size
