"""Figures of the two-dimensional embedding of the images, with the names of the classes on it.

For papers in one color or by class; for pages a point for every image, and a ring around the selected one.
"""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from plotly import graph_objects as go

from pipeline.figures.palette import CHOSEN, NOISE, SCALE
from pipeline.figures.rendering import matplotlib_style, plotly_layout, plotly_text
from pipeline.figures.style import MAX_NAMES, Colors, Groups, Scale, class_color

MAX_NAMED = 30
"""Number of classes above which their names would cover the points."""

MAX_PLOTTED = 100_000
"""Number of points up to which WebGL stays smooth."""

POINTS, RING = 0, 1
"""Indices of the two traces."""


_MARGIN = 0.04
"""Empty space around the points, as a share of their range."""

_SUSPECT_SHARE = 0.5
"""Share of the most suspect among the plotted points if there are too many; the others are a sample."""

Box = tuple[tuple[float, float], tuple[float, float]]
"""Ends of a section of the map, by axis."""


class NamePlace(NamedTuple):
    """Name of a class and where it is written."""

    name: str
    x: float
    y: float


def name_places(
    xy: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]], class_names: Sequence[str]
) -> list[NamePlace]:
    """Return the place of the name of each class with images: the median of its points, which wrong labels hardly move.

    There are no places if more than `MAX_NAMED` classes have images.

    Args:
        xy: (N, 2) coordinates.
        labels: (N,) indices into `class_names`.
    """
    present = np.unique(labels).tolist()
    if len(present) > MAX_NAMED:
        return []
    return [NamePlace(class_names[label], *np.median(xy[labels == label], axis=0).tolist()) for label in present]


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


def rows_to_draw(
    xy: NDArray[np.floating[Any]],
    scores: NDArray[np.float64],
    shown: NDArray[np.bool_],
    *,
    at_most: int,
    box: Box | None = None,
) -> NDArray[np.int64]:
    """Return the rows of the points to draw, the most suspect last, so that they are on top.

    If more than `at_most` are shown, only those inside the box are candidates. Half of the plotted points are the most
    suspect of these, half a sample of the others. Equal orders give equal rows: a moved threshold moves no point.

    Args:
        xy: (N, 2) coordinates.
        scores: (N,) any measure of suspicion.
        shown: (N,) whether the image passes the current selection.
    """
    rows = np.flatnonzero(shown)
    if len(rows) > at_most and box is not None:
        inside = [(xy[rows, axis] >= low) & (xy[rows, axis] <= high) for axis, (low, high) in enumerate(box)]
        rows = rows[np.logical_and(*inside)]
    order = np.argsort(scores[rows], kind="stable")
    rows = rows[order]
    if len(rows) <= at_most:
        return rows
    n_suspect = int(_SUSPECT_SHARE * at_most)
    others, suspect = rows[: len(rows) - n_suspect], rows[len(rows) - n_suspect :]
    sample = np.random.default_rng(0).permutation(len(xy))[others].argsort(kind="stable")[: at_most - n_suspect]
    return np.concatenate([others[np.sort(sample)], suspect])


def explorer_map(xy: NDArray[np.floating[Any]], rows: NDArray[np.int64], colors: Colors, *, view: str) -> go.Figure:
    """Return a WebGL scatter plot; the custom data of each point is its row. See `map_frame` for the arguments."""
    figure = map_frame(xy, rows, colors, view=view)
    # A list: Dash does not find single values in an encoded array.
    figure.data[POINTS].update(
        x=xy[rows, 0].astype(np.float32), y=xy[rows, 1].astype(np.float32), customdata=rows.tolist()
    )
    return figure


def map_frame(
    xy: NDArray[np.floating[Any]],
    rows: NDArray[np.int64],
    colors: Colors,
    *,
    view: str,
    ring: int | None = None,
    selected: Sequence[int] = (),
    names: Sequence[NamePlace] = (),
) -> go.Figure:
    """Return a WebGL scatter plot without the coordinates and rows of its points, which are sent separately.

    Axes are left out: the coordinates of a t-SNE embedding have no unit and no direction.

    Args:
        xy: (N, 2) coordinates of all images; the axes span them, so that filtering does not move points.
        rows: rows to draw, the last on top.
        view: plotly keeps the zoom when it redraws if this is unchanged.
        ring: row of the chosen image.
        selected: rows to highlight; if empty all points look the same.
        names: of the classes, on top of the points.
    """
    layout = plotly_layout(x_title="", y_title="") | {"margin": {"l": 0, "r": 0, "t": 0, "b": 0}}
    # With "domain", a lasso could not begin next to a map that is narrower than its frame.
    axis = {"visible": False, "constrain": "range"}
    layout["xaxis"] = {**axis, "range": _range(xy[:, 0])}
    layout["yaxis"] = {**axis, "range": _range(xy[:, 1]), "scaleanchor": "x"}
    marks = selection_marks(rows, selected)
    layout |= {
        "height": None, "uirevision": view, "selectionrevision": marks["revision"], "showlegend": False,
        "dragmode": "pan", "hovermode": "closest", "hoverdistance": 12, "spikedistance": 0,
    }  # fmt: skip
    figure = go.Figure(layout=layout)
    figure.add_trace(
        go.Scattergl(
            mode="markers",
            marker=marker(colors, rows),
            selectedpoints=marks["points"],
            unselected={"marker": {"opacity": 0.15}},
            # The event fires without plotly's text; the app shows the picture.
            hoverinfo="none",
        )
    )
    figure.add_trace(
        go.Scattergl(
            **ring_at(xy, ring),
            mode="markers",
            marker={"symbol": "circle-open", "size": 18, "color": CHOSEN, "line": {"width": 3}},
            hoverinfo="skip",
        )
    )
    if names:
        figure.layout.annotations = name_annotations(names)
    return figure


def name_annotations(names: Sequence[NamePlace]) -> list[dict[str, Any]]:
    """Return the names of the classes as annotations of the map."""
    # Without an arrow, annotations let the pointer through.
    return [
        {"x": name.x, "y": name.y, "text": plotly_text(name.name), "showarrow": False, "font": {"size": 13}}
        for name in names
    ]


def selection_marks(rows: NDArray[np.int64], selected: Sequence[int]) -> dict[str, Any]:
    """Return which of the plotted points are selected, by their positions among `rows`, and the marks' identity.

    Plotly keeps the user's selection while `layout.selectionrevision` is unchanged. It stores positions in a list,
    which are other images after other rows are plotted.

    Args:
        rows: (n,) of the plotted points, in the order in which they are plotted.
        selected: rows; those that are not plotted do not count.
    """
    positions = np.flatnonzero(np.isin(rows, selected)).tolist() if len(selected) else None
    return {"points": positions, "revision": f"{zlib.crc32(rows.tobytes())} {zlib.crc32(str(positions).encode())}"}


def recolored(colors: Colors, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return the marker of the points `rows` (n,) as plain JSON, to patch a map that is otherwise unchanged."""
    # Without a template, since copying it would take most of the time.
    figure = go.Figure(go.Scattergl(marker=marker(colors, rows)), layout={"template": "none"}).to_dict()
    plain: dict[str, Any] = figure["data"][0]["marker"]
    return plain


def no_map() -> go.Figure:
    """Return an empty map with a message; it has the same traces, which can be patched."""
    hidden = {"visible": False}
    layout = {"template": "none", "xaxis": hidden, "yaxis": hidden, "showlegend": False}
    clear = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}
    return go.Figure([go.Scattergl(x=[], y=[]), go.Scattergl(x=[], y=[])], layout=layout | clear)


def ring_at(xy: NDArray[np.floating[Any]], row: int | None) -> dict[str, list[float]]:
    """Return the ring's coordinates: around one row of xy (N, 2), or empty if there is no such row."""
    chosen = [] if row is None or row not in range(len(xy)) else [row]
    return {"x": xy[chosen, 0].tolist(), "y": xy[chosen, 1].tolist()}


def marker(colors: Colors, rows: NDArray[np.int64]) -> dict[str, Any]:
    """Return the marker of the points `rows` (n,): smaller for more points, a number for each color, of one byte.

    A coloring by values has floats, 0 to 1.
    """
    size = float(np.clip(600 / np.sqrt(max(1, len(rows))), 3, 9))
    return {"size": size, "opacity": 0.85, **_coloring(colors, rows)}


def _coloring(colors: Colors, rows: NDArray[np.int64]) -> dict[str, Any]:
    if not isinstance(colors, Groups):
        return {"color": colors.values[rows].astype(np.float32), "cmin": 0, "cmax": 1, "colorscale": SCALE}
    distinct = list(dict.fromkeys(colors.colors))
    indices = np.array([distinct.index(color) for color in colors.colors], dtype=np.uint8)
    n = len(distinct)
    steps = [(end / n, color) for index, color in enumerate(distinct) for end in (index, index + 1)]
    return {"color": indices[colors.codes[rows]], "cmin": -0.5, "cmax": n - 0.5, "colorscale": steps}


def _range(values: NDArray[np.floating[Any]]) -> list[float]:
    low, high = float(values.min()), float(values.max())
    margin = _MARGIN * (high - low) or 1.0
    return [low - margin, high + margin]
