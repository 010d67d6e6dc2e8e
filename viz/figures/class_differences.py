"""Differences in the accuracy of each class: one row per class, one marker per arm compared with."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from pipeline.stats.estimates import Estimate
from viz.figures.palette import LineKey, line_styles
from viz.figures.rendering import matplotlib_style


def class_difference_figure(rows: Sequence[str], differences: Mapping[str, Sequence[Estimate]]) -> Figure:
    """A matplotlib figure of filtered minus each control.

    Args:
        rows: what each row is called, from the top, e.g. classes and "worst class".
        differences: control -> one estimate per row, in percentage points; bars are its intervals, where it has one.
    """
    with matplotlib_style():
        figure = Figure(figsize=(6.4, 1.2 + 0.3 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        places = np.arange(len(rows))
        axes.axvline(0, color="#888888", linewidth=1)
        styles = line_styles([LineKey(control) for control in differences])
        for at, (control, found) in enumerate(differences.items()):
            ends = np.array([(row.mean, row.low, row.high) for row in found], dtype=np.float64)  # NaN without interval
            axes.errorbar(
                ends[:, 0],
                # So that bars do not hide each other.
                places + 0.2 * at,
                xerr=[ends[:, 0] - ends[:, 1], ends[:, 2] - ends[:, 0]],
                color=styles[LineKey(control)].color,
                marker=styles[LineKey(control)].marker[1],
                linestyle="none",
                capsize=3,
                label=f"filtered − {control}",
            )
        axes.set_yticks(places, rows)
        axes.invert_yaxis()
        axes.set(xlabel="difference in accuracy (percentage points)")
        if differences:
            axes.legend(fontsize=8)
        return figure
