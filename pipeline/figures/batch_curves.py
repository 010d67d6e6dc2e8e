"""Charts of accuracy and of the best warm-up against the batch size, and of speed against the number of GPUs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from plotly import graph_objects as go

from pipeline.figures.palette import MARK, SERIES
from pipeline.figures.rendering import (
    bar_lengths,
    dodge_factor,
    interval_text,
    log_axis_ends,
    matplotlib_log_axis,
    matplotlib_style,
    plotly_layout,
    plotly_line,
    plotly_text,
)
from pipeline.figures.style import LineKey, LineStyle, line_styles
from pipeline.stats.formatting import number

WARMUP_TITLE = "best warm-up (epochs)"

# The published network and data have no line.
_PUBLISHED_STYLE = LineStyle(color=MARK, marker=("circle", "o"), dash=("solid", "-"))


@dataclass(frozen=True, kw_only=True)
class BatchCurve:
    """One line of a chart: values at ascending batch sizes.

    Attributes:
        low, high: ends of the intervals; None without an interval.
        n: number of runs of each value.
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
    """A published value: a hollow marker in the style of its line. Those of one label share a legend entry."""

    style: LineStyle
    label: str
    batch_size: int
    value: float


def batch_chart(
    curves: Sequence[BatchCurve], *, y_title: str, zero_line: bool = False, published: Sequence[PublishedValue] = ()
) -> go.Figure:
    """Return a plotly chart with a logarithmic axis of batch sizes; values and `y_title` share their unit."""
    layout = plotly_layout(x_title="batch size (log scale)", y_title=y_title)
    sizes = _all_sizes(curves, published)
    layout["xaxis"] |= {"type": "log", "tickvals": sizes, "ticktext": [f"{size:,}" for size in sizes]}
    layout["xaxis"]["range"] = [math.log10(end) for end in log_axis_ends(sizes)]
    figure = go.Figure(layout=layout | {"showlegend": True})
    for position, curve in enumerate(curves):
        figure.add_trace(_plotly_trace(curve, dodge_factor(position, len(curves))))
    for values in _by_label(published):
        figure.add_trace(_plotly_markers(values))
    if zero_line:
        figure.add_hline(y=0, line={"color": MARK, "width": 1})
    return figure


def batch_figure(
    curves: Sequence[BatchCurve], *, y_title: str, zero_line: bool = False, published: Sequence[PublishedValue] = ()
) -> Figure:
    """Return the chart as a matplotlib figure for papers."""
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
            axes.axhline(0, color=MARK, linewidth=1)
        for position, curve in enumerate(curves):
            style, shift = curve.style, dodge_factor(position, len(curves))
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
        labeled = _by_label(published)
        for values in labeled:
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
        if labeled:
            # Published values lie outside the lines, where a legend inside would cover them.
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


@dataclass(frozen=True, kw_only=True)
class ScalingCurve:
    """Values at ascending numbers of GPUs; efficiency 0 to 1."""

    gpus: Sequence[int]
    images_per_second: Sequence[float]
    efficiency: Sequence[float]
    hours: Sequence[float]


def scaling_figure(weak: Mapping[str, ScalingCurve], strong: Mapping[str, ScalingCurve], *, title: str) -> Figure:
    """Return four panels: throughput and efficiency of weak scaling; efficiency and time of strong scaling.

    Args:
        weak: communication method -> its curve.
        strong: global batch -> the curve of its fastest method.
        title: title that identifies the figure as simulated.
    """
    with matplotlib_style():
        figure = Figure(figsize=(10.0, 7.0), layout="constrained")
        figure.suptitle(title, fontsize=11)
        ((throughput, efficiency), (strong_efficiency, hours)) = figure.subplots(2, 2)
        for panel, curves, attribute, unit, y_title in (
            (throughput, weak, "images_per_second", 1, "images/s, same local batch"),
            (efficiency, weak, "efficiency", 100, "efficiency (%), same local batch"),
            (strong_efficiency, strong, "efficiency", 100, "efficiency (%), same global batch"),
            (hours, strong, "hours", 1, "hours to train, same global batch"),
        ):
            _draw(panel, curves, attribute, unit, y_title)
        matplotlib_log_axis(throughput, "y", [value for curve in weak.values() for value in curve.images_per_second])
        matplotlib_log_axis(hours, "y", [value for curve in strong.values() for value in curve.hours])
        for panel in (efficiency, strong_efficiency):
            panel.set_ylim(0, 105)
        return figure


def _draw(panel: Any, curves: Mapping[str, ScalingCurve], attribute: str, unit: float, y_title: str) -> None:
    for index, (name, curve) in enumerate(curves.items()):
        values = [unit * value for value in getattr(curve, attribute)]
        style = ("-", "--", ":")[index // len(SERIES) % 3]
        panel.plot(
            curve.gpus, values, style, label=name, color=SERIES[index % len(SERIES)], marker="o", markersize=3
        )  # fmt: skip
    panel.set_xscale("log", base=2)
    gpus = sorted({count for curve in curves.values() for count in curve.gpus})
    shown = gpus[:: 1 + len(gpus) // 9]
    panel.set_xticks(
        shown, [f"{count:,}" for count in shown], fontsize=8, rotation=30, ha="right", rotation_mode="anchor"
    )
    panel.minorticks_off()
    panel.set(xlabel="GPUs", ylabel=y_title)
    if curves:
        # "best" examines every point, and warns if that is slow.
        panel.legend(fontsize=8, loc="upper left" if attribute == "images_per_second" else "lower left")


def warmup_curves(laws: Sequence[Mapping[str, Any]]) -> list[BatchCurve]:
    """Return one curve for each of the summary's `warmup_laws`: the mean of the seeds' best, in epochs.

    Intervals end at 0.
    """
    names = [name for name in ("learning_rate", "weight_decay") if len({law[name] for law in laws}) > 1]
    several = len({tuple(law["studies"]) for law in laws}) > 1
    keys = [_warmup_key(law, names, several=several) for law in laws]
    styles = line_styles(keys)
    return [_warmup_curve(law, key, styles[key]) for law, key in zip(laws, keys, strict=True)]


def published_warmups(points: Mapping[int, float], source: str) -> list[PublishedValue]:
    """Return the published values of one source, given as batch size -> best warm-up in epochs."""
    return [
        PublishedValue(style=_PUBLISHED_STYLE, label=f"published: {source}", batch_size=size, value=epochs)
        for size, epochs in points.items()
    ]


def _warmup_key(law: Mapping[str, Any], names: Sequence[str], *, several: bool) -> LineKey:
    parts = [law["model"], *(f"{name.replace('_', ' ')} {number(law[name])}" for name in names)]
    return LineKey(law["arm"], ", ".join([*parts, *([f"of {law['studies'][0]} and its siblings"] if several else [])]))


def _warmup_curve(law: Mapping[str, Any], key: LineKey, style: LineStyle) -> BatchCurve:
    estimates = [best["by_seed"] for best in law["best"]]
    return BatchCurve(
        key=key,
        style=style,
        label=str(key),
        batch_sizes=[best["batch_size"] for best in law["best"]],
        values=[estimate["mean"] for estimate in estimates],
        low=[None if estimate["low"] is None else max(0.0, estimate["low"]) for estimate in estimates],
        high=[estimate["high"] for estimate in estimates],
        n=[estimate["n"] for estimate in estimates],
    )
