"""Figures by class, and of the share of dropped images: per class, and against the threshold.

By class: the noise on the embedding, and differences of accuracy.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from plotly import graph_objects as go

from pipeline.figures.palette import MARK, NOISE, SERIES
from pipeline.figures.rendering import (
    matplotlib_log_axis,
    matplotlib_style,
    plotly_layout,
    plotly_log_axis,
    plotly_text,
)
from pipeline.figures.style import LineKey, class_color, line_styles
from pipeline.stats.estimates import Estimate

MAX_PANELS = 12
_COLUMNS = 4
_INCHES = 2.0

_MAX_NAME = 20
"""Characters of a class name next to its bars, so that the bars have room on a phone."""

_CLASSES_TITLE, _EXCEED_TITLE = "images called noise (%)", "images that exceed it (%)"


def class_panels(
    xy: NDArray[np.floating[Any]],
    labels: NDArray[np.integer[Any]],
    class_names: Sequence[str],
    is_noise: NDArray[np.bool_],
) -> Figure:
    """Return one panel per class with its noise in gray above the rest, all at the same scale (Gahlot 2020, fig. 3).

    Args:
        xy: (N, 2) coordinates.
        labels: (N,) indices into `class_names`; classes without images have no panel. Of more than MAX_PANELS classes
            those with the largest shares of noise are shown.
        is_noise: (N,).
    """
    shown = noisiest_classes(labels, is_noise)
    columns = min(_COLUMNS, max(1, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    with matplotlib_style():
        figure = Figure(figsize=(_INCHES * columns, (_INCHES + 0.3) * rows), layout="constrained")
        grid: Any = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
            axes.set_aspect("equal")
        for axes, label in zip(grid.flat, shown, strict=False):
            own = labels == label
            for chosen, color in ((own & ~is_noise, class_color(label)), (own & is_noise, NOISE)):
                axes.scatter(
                    xy[chosen, 0], xy[chosen, 1], c=color, s=_size(int(own.sum())), linewidths=0, rasterized=True
                )
            share = 100 * is_noise[own].mean()
            axes.set_title(f"{class_names[label]}, {share:.1f} % noise", parse_math=False, fontsize="medium")
        return figure


def noisiest_classes(labels: NDArray[np.integer[Any]], is_noise: NDArray[np.bool_]) -> list[int]:
    """Return at most MAX_PANELS classes that have images, in their order: those with the largest noise shares.

    Args:
        labels: (N,) class numbers.
        is_noise: (N,).
    """
    there = np.unique(labels)
    shares = np.array([is_noise[labels == label].mean() for label in there])
    first = np.argsort(-shares, kind="stable")[:MAX_PANELS]
    return sorted(there[first].tolist())


def _size(n: int) -> float:
    """Return a marker's size in square points: smaller for many images."""
    return float(np.clip(4_000 / max(1, n), 1.0, 12))


def class_difference_figure(rows: Sequence[str], differences: Mapping[str, Sequence[Estimate]]) -> Figure:
    """Return a matplotlib figure of filtered minus each control: a row per class, a marker per control.

    Args:
        rows: what each row is called, from the top, e.g. classes and "worst class".
        differences: control -> one estimate per row, in percentage points; bars are the intervals, if any.
    """
    with matplotlib_style():
        figure = Figure(figsize=(6.4, 1.2 + 0.3 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        positions = np.arange(len(rows))
        axes.axvline(0, color=MARK, linewidth=1)
        styles = line_styles([LineKey(control) for control in differences])
        for index, (control, estimates) in enumerate(differences.items()):
            # None becomes NaN, which draws no bar.
            ends = np.array([(row.mean, row.low, row.high) for row in estimates], dtype=np.float64)
            axes.errorbar(
                ends[:, 0],
                # So that bars do not hide each other.
                positions + 0.2 * index,
                xerr=[ends[:, 0] - ends[:, 1], ends[:, 2] - ends[:, 0]],
                color=styles[LineKey(control)].color,
                marker=styles[LineKey(control)].marker[1],
                linestyle="none",
                capsize=3,
                label=f"filtered − {control}",
            )
        axes.set_yticks(positions, rows)
        axes.invert_yaxis()
        axes.set(xlabel="difference in accuracy (percentage points)")
        if differences:
            axes.legend(fontsize=8)
        return figure


def class_share_chart(class_names: Sequence[str], shares: Mapping[str, Sequence[float]]) -> go.Figure:
    """Return bars of the noise share of each class, in percent, one series per network.

    Long names are cut; the pointer shows them whole.

    Args:
        shares: network -> one share per class, 0 to 1.
    """
    height = 130 + len(class_names) * max(22, 12 * len(shares))
    layout = plotly_layout(x_title=_CLASSES_TITLE, y_title="", height=height)
    # Classes go from top to bottom, as in the table; two of one name have a bar each.
    rows = list(range(len(class_names)))
    names = [plotly_text(name) for name in class_names]
    short = [plotly_text(name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…") for name in class_names]
    layout["yaxis"] |= {"autorange": "reversed", "tickvals": rows, "ticktext": short, "showgrid": False}
    layout["xaxis"] |= {"rangemode": "tozero"}
    figure = go.Figure(layout=layout | {"barmode": "group", "showlegend": len(shares) > 1})
    for index, (network, values) in enumerate(shares.items()):
        figure.add_trace(
            go.Bar(
                y=rows,
                x=[100 * value for value in values],
                orientation="h",
                name=network,
                text=names,
                textposition="none",
                marker={"color": SERIES[index % len(SERIES)]},
                hovertemplate="%{text}: %{x:.2f} % noise",
            )
        )
    return figure


def class_share_figure(class_names: Sequence[str], shares: Mapping[str, Sequence[float]]) -> Figure:
    """Return the chart as a matplotlib figure for papers."""
    with matplotlib_style():
        figure = Figure(figsize=(6.4, 1.2 + len(class_names) * max(0.25, 0.14 * len(shares))), layout="constrained")
        axes = figure.add_subplot()
        height = 0.8 / max(1, len(shares))
        for index, (network, values) in enumerate(shares.items()):
            axes.barh(
                [row + height * (index - (len(shares) - 1) / 2) for row in range(len(class_names))],
                [100 * value for value in values],
                height=height,
                label=network,
                color=SERIES[index % len(SERIES)],
            )
        axes.set_yticks(range(len(class_names)), class_names)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(_CLASSES_TITLE)
        if len(shares) > 1:
            axes.legend(fontsize=8)
        return figure


def eps_chart(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    chosen: Mapping[str, tuple[float, float]],
    *,
    unit: str,
) -> go.Figure:
    """Return the share of dropped images against the threshold, with a mark at each network's filter.

    Args:
        curves: network -> (thresholds, share of the images that exceed them, 0 to 1).
        chosen: network -> the same pair for the threshold in use; networks without a single one are missing.
        unit: what the thresholds are, "eps (units of the embedding)".
    """
    layout = plotly_layout(x_title=f"{unit}, log scale", y_title=_EXCEED_TITLE)
    layout["yaxis"] |= {"rangemode": "tozero"}
    layout["xaxis"] |= plotly_log_axis(value for eps, _ in curves.values() for value in eps)
    figure = go.Figure(layout=layout)
    for index, (network, (eps, shares)) in enumerate(curves.items()):
        color = SERIES[index % len(SERIES)]
        figure.add_trace(
            go.Scatter(
                x=list(eps),
                y=[100 * share for share in shares],
                name=network,
                mode="lines",
                line={"color": color},
                hovertemplate="%{x:.3g}: %{y:.2f} % exceed it",
            )
        )
        if network not in chosen:
            continue
        figure.add_trace(
            go.Scatter(
                x=[chosen[network][0]],
                y=[100 * chosen[network][1]],
                name=f"{network}: in use",
                mode="markers",
                marker={"color": color, "size": 12, "symbol": "x"},
                hovertemplate="in use: %{x:.4g}, %{y:.2f} % exceed it",
            )
        )
    return figure


def eps_figure(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    chosen: Mapping[str, tuple[float, float]],
    *,
    unit: str,
) -> Figure:
    """Return the chart as a matplotlib figure for papers."""
    with matplotlib_style():
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        for index, (network, (eps, shares)) in enumerate(curves.items()):
            color = SERIES[index % len(SERIES)]
            axes.plot(eps, [100 * share for share in shares], label=network, color=color)
            if network in chosen:
                threshold, share = chosen[network]
                axes.plot([threshold], [100 * share], "x", label=f"{network}: in use", color=color, markersize=9)
        matplotlib_log_axis(axes, "x", [value for eps, _ in curves.values() for value in eps])
        axes.set_ylim(bottom=0)
        axes.set(xlabel=f"{unit}, log scale", ylabel=_EXCEED_TITLE)
        axes.legend(fontsize=8)
        return figure
