"""Figures by class: the noise on the embedding, and differences of accuracy."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pipeline.figures.rendering import matplotlib_style
from pipeline.figures.style import NOISE, LineKey, class_color, line_styles
from pipeline.stats.estimates import Estimate

MAX_PANELS = 12
_COLUMNS = 4
_INCHES = 2.0


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
        axes.axvline(0, color="#888888", linewidth=1)
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
