"""Figures of the two-dimensional embedding of the images, for papers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from pipeline.figures.class_names import NamePlace
from pipeline.figures.rendering import matplotlib_style
from pipeline.figures.style import MAX_NAMES, NOISE, SCALE, Colors, Groups, Scale, class_color


def class_map(
    xy: NDArray[np.floating[Any]],
    labels: NDArray[np.integer[Any]],
    class_names: Sequence[str],
    is_noise: NDArray[np.bool_] | None = None,
    *,
    legend: bool = True,
) -> Figure:
    """Return a scatter plot of all images colored by class, with the noise in gray.

    Args:
        xy: (N, 2) coordinates.
        labels: (N,) indices into `class_names`.
        is_noise: (N,); these images are gray and on top of the others.
        legend: name the classes next to the map, if each has a separate color.
    """
    noise = np.zeros(len(xy), dtype=bool) if is_noise is None else is_noise
    names, colors = list(class_names), [class_color(index) for index in range(len(class_names))]
    codes = np.where(noise, len(names), labels)
    with_noise = Groups(codes=codes, names=[*names, "noise"], colors=[*colors, NOISE])
    with matplotlib_style():
        figure = _scatter(xy, with_noise, noise)
        if legend and _all_distinct(colors):
            shown = len(names) + (is_noise is not None)
            _add_legend(figure, with_noise.names[:shown], with_noise.colors[:shown])
        return figure


def colored_map(
    xy: NDArray[np.floating[Any]],
    colors: Colors,
    above: NDArray[np.bool_],
    *,
    title: str = "",
    names: Sequence[NamePlace] = (),
) -> Figure:
    """Return a scatter plot of all images with a legend of the groups that have members, or a color bar.

    There is no legend if a color stands for several groups, or if their names do not fit.

    Args:
        xy: (N, 2) coordinates.
        above: (N,) points on top of the rest.
        title: above the points.
        names: of the classes, on top of all points.
    """
    with matplotlib_style():
        figure = _scatter(xy, colors, above)
        axes = figure.axes[0]
        if title:
            axes.set_title(title, loc="left", fontsize=11)
        for name in names:
            text = axes.text(name.x, name.y, name.name, ha="center", va="center", fontsize=9, weight="bold")
            text.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
        if isinstance(colors, Groups):
            present = np.unique(colors.codes).tolist()
            shown = [colors.colors[code] for code in present]
            if len(present) <= MAX_NAMES and _all_distinct(shown):
                _add_legend(figure, [colors.names[code] for code in present], shown)
        return figure


def _all_distinct(colors: Sequence[str]) -> bool:
    return len(set(colors)) == len(colors)


def _scatter(xy: NDArray[np.floating[Any]], colors: Colors, above: NDArray[np.bool_]) -> Figure:
    """Draw the points rasterized, so that the file does not grow with the number of images.

    Axes are left out: the coordinates of a t-SNE embedding have no unit and no direction.
    """
    figure = Figure(figsize=(7.0, 7.0))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_aspect("equal")
    size = float(np.clip(40_000 / max(1, len(xy)), 1.5, 36))
    scale_options: dict[str, Any] = {"cmap": SCALE, "vmin": 0, "vmax": 1} if isinstance(colors, Scale) else {}
    colored = colors.values if isinstance(colors, Scale) else np.array(colors.colors)[colors.codes]
    for chosen in (~above, above):
        points = axes.scatter(
            xy[chosen, 0], xy[chosen, 1], c=colored[chosen], s=size, linewidths=0, rasterized=True, **scale_options
        )
    if isinstance(colors, Scale):
        figure.colorbar(points, cax=figure.add_axes((1.03, 0.25, 0.03, 0.5)), label=colors.name)
    return figure


def _add_legend(figure: Figure, names: Sequence[str], colors: Sequence[str]) -> None:
    axes = figure.axes[0]
    for name, color in zip(names, colors, strict=True):
        # A leading underscore would hide the entry; a space before it shows the name.
        axes.scatter([], [], c=color, s=36, label=f" {name}")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
