"""Charts of a search: importance of keys, trials across key values, and accuracy over epochs."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from plotly import graph_objects as go

from pipeline.figures.palette import MARK, NOISE, SCALE, SERIES
from pipeline.figures.rendering import matplotlib_style, plotly_layout, plotly_text

_SHARE = "share of the variance in accuracy"
_ACCURACY = "accuracy on the val rows (%)"
_LETTERS = 22  # per line of a label


@dataclass(frozen=True, kw_only=True)
class KeyAxis:
    """One key, as a vertical axis from 0 to 1.

    Attributes:
        name: the key.
        positions: (trials,) positions of the trials' values, 0 to 1.
        ticks: position -> label.
    """

    name: str
    positions: Sequence[float]
    ticks: Mapping[float, str]


def importance_chart(shares: Mapping[str, float]) -> go.Figure:
    """Return plotly bars, the longest on top.

    Args:
        shares: key -> 0 to 1, in sum 1.
    """
    bars = _ascending(shares)
    layout = plotly_layout(x_title=_SHARE, y_title="", height=120 + 40 * len(bars))
    names = [plotly_text(name) for name in bars]
    hover = "%{y}: %{x:.3f}<extra></extra>"
    bar = go.Bar(
        x=list(bars.values()), y=names, orientation="h", marker={"color": SERIES[0]}, hovertemplate=hover
    )  # fmt: skip
    return go.Figure([bar], layout=layout)


def importance_figure(shares: Mapping[str, float]) -> Figure:
    """Return the chart as a matplotlib figure for papers."""
    bars = _ascending(shares)
    with matplotlib_style():
        figure = Figure(figsize=(5.5, 0.8 + 0.35 * len(bars)), layout="constrained")
        axes = figure.subplots()
        axes.barh(list(bars), list(bars.values()), color=SERIES[0], height=0.6)
        axes.set(xlabel=_SHARE, xlim=(0, None))
        axes.grid(visible=False, axis="y")
        return figure


def parallel_figure(keys: Sequence[KeyAxis], accuracies: Sequence[float], *, winner: int) -> Figure:
    """Return a line for each trial through its values on all axes, in the color of its accuracy.

    Args:
        keys: one or more.
        accuracies: (trials,), 0 to 1.
        winner: index of the winning trial, whose line is thick and above the others.
    """
    percent = 100 * np.asarray(accuracies)
    shades = ScalarMappable(Normalize(percent.min(), percent.max()), mpl.colormaps[SCALE])
    colors = shades.to_rgba(percent)
    with matplotlib_style():
        figure = Figure(figsize=(1.6 + 1.9 * len(keys), 3.6), layout="constrained")
        axes = figure.subplots()
        # At the right each line ends at its accuracy on the color bar.
        ends = np.asarray(shades.norm(percent)).tolist()
        heights = list(zip(*(key.positions for key in keys), ends, strict=True))
        for trial in sorted(range(len(heights)), key=lambda index: (index == winner, percent[index])):
            axes.plot(
                range(len(keys) + 1), heights[trial], color=colors[trial],
                linewidth=2.5 if trial == winner else 1.0, clip_on=False,
            )  # fmt: skip
        for position, key in enumerate(keys):
            axes.axvline(position, color=MARK, linewidth=0.8, zorder=0)
            for height, text in key.ticks.items():
                _tick(axes, position, height, text)
        axes.set_xticks(range(len(keys)), [textwrap.fill(key.name.replace(".", ". "), _LETTERS) for key in keys])
        axes.set(xlim=(-0.5, len(keys)), ylim=(0, 1))
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.spines[["left", "bottom"]].set_visible(False)
        figure.colorbar(shades, ax=axes, label=_ACCURACY, pad=0)
        return figure


def _tick(axes: Any, position: int, height: float, text: str) -> None:
    """Draw a label to the left of an axis, legible on the lines that pass below it."""
    axes.annotate(
        textwrap.fill(text, _LETTERS), (position, height), xytext=(-4, 0), textcoords="offset points", ha="right",
        va="center", fontsize=7, bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.5},
    )  # fmt: skip


def _ascending(shares: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(shares.items(), key=lambda item: item[1]))


_WINNER, _AFTERWARDS, _OTHER = SERIES[0], SERIES[1], NOISE
_X_TITLE, _Y_TITLE = "epochs", "accuracy on the val rows (%)"


@dataclass(frozen=True, kw_only=True)
class TrialCurve:
    """The accuracy of one trial over its epochs.

    Attributes:
        name: text of the tooltip.
        accuracies: 0 to 1, after each epoch from the first.
        searched: number of epochs that the search trained; the others were trained later.
        eliminated_after: epoch after which the trial was pruned, or None.
    """

    name: str
    accuracies: Sequence[float]
    searched: int
    winner: bool
    eliminated_after: int | None


def tuning_chart(curves: Sequence[TrialCurve]) -> go.Figure:
    """Return a plotly chart; a cross marks pruning, a dotted line the training after it."""
    layout = plotly_layout(x_title=_X_TITLE, y_title=_Y_TITLE)
    figure = go.Figure(layout=layout | {"showlegend": False, "hovermode": "closest"})
    for curve in sorted(curves, key=lambda curve: curve.winner):
        color = _WINNER if curve.winner else _OTHER
        figure.add_trace(_line(curve, 1, curve.searched, color=color, dash="solid"))
        if len(curve.accuracies) > curve.searched:
            figure.add_trace(
                _line(curve, curve.searched, len(curve.accuracies), color=_AFTERWARDS, dash="dot")
            )  # fmt: skip
        if curve.eliminated_after is not None:
            figure.add_trace(_cross(curve, curve.eliminated_after))
    return figure


def tuning_figure(curves: Sequence[TrialCurve]) -> Figure:
    """Return the chart as a matplotlib figure for papers, with a legend of its elements."""
    with matplotlib_style():
        figure = Figure(figsize=(5.5, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.set(xlabel=_X_TITLE, ylabel=_Y_TITLE)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles = {}
        for curve in sorted(curves, key=lambda curve: curve.winner):
            epochs = range(1, len(curve.accuracies) + 1)
            percent = [100 * accuracy for accuracy in curve.accuracies]
            group = curve.name.replace(" ", "-")  # id of the line in the file, for drawing programs
            color, width = (_WINNER, 2.0) if curve.winner else (_OTHER, 1.0)
            (handles["winner" if curve.winner else "other trials"],) = axes.plot(
                epochs[: curve.searched], percent[: curve.searched], color=color, linewidth=width, marker="o",
                markersize=2.5, gid=group,
            )  # fmt: skip
            if len(percent) > curve.searched:
                (handles["trained afterwards"],) = axes.plot(
                    epochs[curve.searched - 1 :],
                    percent[curve.searched - 1 :],
                    color=_AFTERWARDS,
                    linestyle=":",
                    gid=f"{group}-afterwards",
                )
            if curve.eliminated_after is not None:
                (handles["pruned"],) = axes.plot(
                    curve.eliminated_after,
                    percent[curve.eliminated_after - 1],
                    color=_OTHER,
                    linestyle="",
                    marker="x",
                    gid=f"{group}-pruned",
                )
        if handles:
            figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4, fontsize=8)
        return figure


def _line(curve: TrialCurve, first: int, last: int, *, color: str, dash: str) -> go.Scatter:
    return go.Scatter(
        x=list(range(first, last + 1)),
        y=[100 * accuracy for accuracy in curve.accuracies[first - 1 : last]],
        name=plotly_text(curve.name),
        mode="lines+markers",
        line={"color": color, "dash": dash, "width": 3 if curve.winner else 1},
        marker={"size": 4},
        hovertemplate=f"{plotly_text(curve.name)}<br>epoch %{{x}}: %{{y:.2f}} %<extra></extra>",
    )


def _cross(curve: TrialCurve, epoch: int) -> go.Scatter:
    return go.Scatter(
        x=[epoch],
        y=[100 * curve.accuracies[epoch - 1]],
        name=plotly_text(curve.name),
        mode="markers",
        marker={"symbol": "x", "size": 9, "color": _OTHER},
        hovertemplate=f"{plotly_text(curve.name)}<br>pruned after epoch %{{x}}<extra></extra>",
    )
