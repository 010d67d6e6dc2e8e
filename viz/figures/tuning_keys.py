"""The keys of a search: how much each matters, and every trial across its values."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from plotly import graph_objects as go

from viz.figures.palette import SCALE, SERIES
from viz.figures.rendering import matplotlib_style, plotly_layout, plotly_text

_SHARE = "share of the variance in accuracy"
_ACCURACY = "accuracy on the val rows (%)"
_LETTERS = 22  # of a line of a label


@dataclass(frozen=True, kw_only=True)
class KeyAxis:
    """One key, as an upright axis from 0 to 1.

    Attributes:
        name: of the key.
        places: (trials,) where the trials' values lie on it.
        ticks: place -> what stands there.
    """

    name: str
    places: Sequence[float]
    ticks: Mapping[float, str]


def importance_chart(shares: Mapping[str, float]) -> go.Figure:
    """Plotly bars, the longest on top.

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
    """The same as a matplotlib figure for papers."""
    bars = _ascending(shares)
    with matplotlib_style():
        figure = Figure(figsize=(5.5, 0.8 + 0.35 * len(bars)), layout="constrained")
        axes = figure.subplots()
        axes.barh(list(bars), list(bars.values()), color=SERIES[0], height=0.6)
        axes.set(xlabel=_SHARE, xlim=(0, None))
        axes.grid(visible=False, axis="y")
        return figure


def parallel_figure(keys: Sequence[KeyAxis], accuracies: Sequence[float], *, winner: int) -> Figure:
    """A line for each trial through its values on all axes, in the colour of its accuracy.

    Args:
        keys: one or more.
        accuracies: (trials,), 0 to 1.
        winner: of the trials, whose line is thick and above the others.
    """
    percent = 100 * np.asarray(accuracies)
    shades = ScalarMappable(Normalize(percent.min(), percent.max()), mpl.colormaps[SCALE])
    colors = shades.to_rgba(percent)
    with matplotlib_style():
        figure = Figure(figsize=(1.6 + 1.9 * len(keys), 3.6), layout="constrained")
        axes = figure.subplots()
        # In a last stretch to the right each line goes to its accuracy's place on the colour bar.
        ends = np.asarray(shades.norm(percent)).tolist()
        heights = list(zip(*(key.places for key in keys), ends, strict=True))
        for trial in sorted(range(len(heights)), key=lambda one: (one == winner, percent[one])):
            axes.plot(
                range(len(keys) + 1), heights[trial], color=colors[trial],
                linewidth=2.5 if trial == winner else 1.0, clip_on=False,
            )  # fmt: skip
        for position, key in enumerate(keys):
            axes.axvline(position, color="#444444", linewidth=0.8, zorder=0)
            for place, text in key.ticks.items():
                _tick(axes, position, place, text)
        axes.set_xticks(range(len(keys)), [textwrap.fill(key.name.replace(".", ". "), _LETTERS) for key in keys])
        axes.set(xlim=(-0.5, len(keys)), ylim=(0, 1))
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.spines[["left", "bottom"]].set_visible(False)
        figure.colorbar(shades, ax=axes, label=_ACCURACY, pad=0)
        return figure


def _tick(axes: Any, position: int, place: float, text: str) -> None:
    """A label to the left of an axis, legible on the lines that pass below it."""
    axes.annotate(
        textwrap.fill(text, _LETTERS), (position, place), xytext=(-4, 0), textcoords="offset points", ha="right",
        va="center", fontsize=7, bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.5},
    )  # fmt: skip


def _ascending(shares: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(shares.items(), key=lambda item: item[1]))
