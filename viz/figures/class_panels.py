"""The noise of single classes on the map, one panel a class (Gahlot et al. 2020, fig. 3)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from viz.figures.palette import NOISE, class_color
from viz.figures.rendering import matplotlib_style

MOST_PANELS = 12
_COLUMNS = 4
_INCHES = 2.0


def class_panels(
    xy: NDArray[np.floating[Any]],
    labels: NDArray[np.integer[Any]],
    class_names: Sequence[str],
    is_noise: NDArray[np.bool_],
) -> Figure:
    """The images of one class in each panel, its noise in grey above the rest, all at the same scale.

    Args:
        xy: (N, 2) coordinates.
        labels: (N,) indices into `class_names`; classes without images have no panel. Of more than MOST_PANELS classes
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
    """At most MOST_PANELS classes that have images, in their order: those with the largest shares of noise."""
    there = np.unique(labels)
    shares = np.array([is_noise[labels == label].mean() for label in there])
    first = np.argsort(-shares, kind="stable")[:MOST_PANELS]
    return sorted(there[first].tolist())


def _size(n: int) -> float:
    """Of a marker, in square points: many images have small ones."""
    return float(np.clip(4_000 / max(1, n), 1.0, 12))
