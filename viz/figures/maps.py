"""Two-dimensional maps of the images, coloured by class, with the noise in grey."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from viz.figures.palette import NOISE, class_color
from viz.figures.rendering import matplotlib_style

_MOST_NAMES = 20


def class_map(
    xy: NDArray[np.floating[Any]],
    labels: NDArray[np.integer[Any]],
    class_names: Sequence[str],
    is_noise: NDArray[np.bool_] | None = None,
    *,
    legend: bool = True,
) -> Figure:
    """Scatter of all images; rasterised, so that its size does not grow with their number.

    Axes are left out: the coordinates of a t-SNE map have no unit and no direction.

    Args:
        xy: (N, 2) coordinates.
        labels: (N,) indices into `class_names`.
        is_noise: (N,); these images are drawn in grey, above the others: a map is looked at for them.
        legend: name the classes beside the map (20 at most, for more there is no room).
    """
    noise = np.zeros(len(xy), dtype=bool) if is_noise is None else is_noise
    colors = np.array([class_color(index) for index in range(len(class_names))])[labels]
    with matplotlib_style():
        figure = Figure(figsize=(7.0, 7.0))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_aspect("equal")
        size = float(np.clip(40_000 / max(1, len(xy)), 1.5, 36))
        for chosen, color in ((~noise, colors[~noise]), (noise, NOISE)):
            axes.scatter(xy[chosen, 0], xy[chosen, 1], c=color, s=size, linewidths=0, rasterized=True)
        if legend and len(class_names) <= _MOST_NAMES:
            _add_legend(axes, class_names, has_noise=is_noise is not None)
        return figure


def _add_legend(axes: Any, class_names: Sequence[str], *, has_noise: bool) -> None:
    entries = [(name, class_color(index)) for index, name in enumerate(class_names)]
    if has_noise:
        entries.append(("noise", NOISE))
    for name, color in entries:
        # A leading underscore would hide the entry; a space before it shows the name.
        axes.scatter([], [], c=color, s=36, label=f" {name}")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
