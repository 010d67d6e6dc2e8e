"""Render figures to bytes and markup; layout, logarithmic axes and error bars that charts share; grids of images.

Equal figures give equal bytes. Nothing is loaded from a network.
"""

import base64
import html
import io
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image
from plotly import graph_objects as go
from plotly import offline
from plotly.io.json import to_json_plotly

from pipeline.figures.style import LineStyle

# Dates, versions and random ids would make equal figures differ. A `$` in a class name is not a formula.
_STYLE: Any = {
    "svg.hashsalt": "figure",
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "font.size": 10,
}

_MAX_TICKS = 9

# Without the first two, plotly's toolbar offers to upload the figure to a server.
PLOTLY_CONFIG: Any = {
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "displaylogo": False,
    "responsive": True,
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
}
"""Plotly configuration of static charts: on the report's page and in the app."""

_COLUMNS = 10


@contextmanager
def matplotlib_style() -> Iterator[None]:
    """Apply the style of all matplotlib figures; draw and save inside the context."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # Characters that the bundled font lacks are shown as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def png(figure: Figure, *, dpi: int = 150, transparent: bool = False, cropped: bool = True) -> bytes:
    """Return the figure as a PNG file, cropped to its content or whole."""
    box = "tight" if cropped else None
    return _saved(
        figure, format="png", dpi=dpi, transparent=transparent, bbox_inches=box, metadata={"Software": None}
    )  # fmt: skip


def svg(figure: Figure) -> bytes:
    """Return the figure as an SVG file with text as paths: it needs no font."""
    return _saved(figure, format="svg", metadata={"Date": None, "Creator": None})


def pdf(figure: Figure) -> bytes:
    """Return the figure as a PDF file."""
    return _saved(figure, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})


def with_note(figure: Figure, note: str | None) -> Figure:
    """Return the figure with a prominent line of text below it; None adds none."""
    if note:
        figure.text(0.0, -0.02, note, ha="left", va="top", fontsize=9, color="#8a2f00")
    return figure


def plotly_html(figure: go.Figure, *, element_id: str) -> str:
    """Return a `<div>` with the figure, for a page with `plotly_script()` before it.

    Args:
        element_id: id of the `<div>`, unique on the page; letters, digits, `-` and `_`.
    """
    # Not `to_html`: it drops the empty server address, and plotly's script would insert its default.
    tree = figure.to_dict()
    arguments = [to_json_plotly(part) for part in (element_id, tree["data"], tree["layout"], PLOTLY_CONFIG)]
    return f'<div id="{element_id}"></div>\n<script>Plotly.newPlot({", ".join(arguments)})</script>'


def plotly_script() -> str:
    """Return the source of plotly.js (about 5 MB); include it once per page."""
    source: str = offline.get_plotlyjs()
    return source


def plotly_text(name: str) -> str:
    """Escape `name` for a plotly label, which otherwise interprets tags such as `<a>` and `<b>`."""
    return html.escape(name, quote=False)


def plotly_layout(*, x_title: str, y_title: str, height: int = 420) -> dict[str, Any]:
    """Return the layout that all plotly charts share: no background and no frame."""
    axis = {"gridcolor": "#e4e4e4", "linecolor": "#888888", "zeroline": False, "automargin": True}
    title_font = {"size": 14}
    return {
        "template": "none",
        "height": height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
        "margin": {"l": 60, "r": 20, "t": 20, "b": 55},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hoverlabel": {"bgcolor": "#ffffff"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#999999", "activecolor": "#444444"},
        "xaxis": {**axis, "title": {"text": x_title, "font": title_font}},
        "yaxis": {**axis, "title": {"text": y_title, "font": title_font}},
    }


def compact_chart(figure: go.Figure) -> go.Figure:
    """Make a chart small enough for several on a screen: lower, with narrow margins and smaller text."""
    figure.update_layout(height=240, margin={"l": 50, "r": 10, "t": 10, "b": 45}, font={"size": 12})
    return figure


def row_chart(figure: go.Figure) -> go.Figure:
    """Make a chart low enough for a row of several: without titles and legend, which the page shows once."""
    figure.update_layout(height=140, margin={"l": 36, "r": 8, "t": 8, "b": 24}, font={"size": 11}, showlegend=False)
    return figure.update_layout(xaxis={"title": None}, yaxis={"title": None, "nticks": 4})


def plotly_log_axis(values: Iterable[float]) -> dict[str, Any]:
    """Return a logarithmic plotly axis that spans positive `values`, with `log_ticks`."""
    ticks = log_ticks(values)
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def matplotlib_log_axis(axes: Axes, which: Literal["x", "y"], values: Iterable[float]) -> None:
    """Make one axis logarithmic, with `log_ticks` of `values`, or only some powers of ten if those are many.

    Call it after plotting, since it widens the limits to the ticks. Without a positive value the axis stays linear.
    """
    positive = _positive(values)
    if not positive:
        return
    ticks = log_ticks(positive)
    if len(ticks) > _MAX_TICKS:
        powers = [tick for tick in ticks if math.log10(tick).is_integer()]
        ticks = powers[:: -(-len(powers) // _MAX_TICKS)]
    axes.set(**{f"{which}scale": "log"})
    axis: Axis = getattr(axes, f"{which}axis")
    # Matplotlib's default labels are formulas, which the style turns off.
    axis.set_ticks(ticks, [f"{tick:,.10g}" for tick in ticks])
    axis.minorticks_off()


def log_ticks(values: Iterable[float]) -> list[float]:
    """Return 1, 2 and 5 times powers of ten over the range of the positive `values`; even steps for a narrow one."""
    positive = _positive(values) or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    ticks = [digit * 10.0**power for power in range(low, high + 1) for digit in (1, 2, 5)]
    if 1.001 * min(positive) < max(positive) and sum(min(positive) <= tick <= max(positive) for tick in ticks) < 2:
        even = MaxNLocator(5).tick_values(min(positive), max(positive))
        ticks = [float(tick) for tick in even if tick > 0]
    return [tick for tick in ticks if min(positive) / 2 < tick < 2 * max(positive)]


def _positive(values: Iterable[float]) -> list[float]:
    return [value for value in values if 0 < value < math.inf]


def _saved(figure: Figure, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with matplotlib_style():
        figure.savefig(buffer, **{"bbox_inches": "tight", **options})
    return buffer.getvalue()


def bar_lengths(
    values: Sequence[float], low: Sequence[float | None], high: Sequence[float | None]
) -> tuple[list[float], list[float]]:
    """Return the lengths of the error bars below and above each value; NaN, which draws none, without an interval."""
    below = [value - end if end is not None else math.nan for value, end in zip(values, low, strict=True)]
    above = [end - value if end is not None else math.nan for value, end in zip(values, high, strict=True)]
    return below, above


def plotly_line(
    style: LineStyle, values: Sequence[float], low: Sequence[float | None], high: Sequence[float | None]
) -> dict[str, Any]:
    """Return arguments that make a `go.Scatter` of `values` a line with markers and error bars."""
    below, above = bar_lengths(values, low, high)
    return {
        "y": list(values),
        "error_y": {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.5},
        "mode": "lines+markers",
        "line": {"color": style.color, "dash": style.dash[0], "width": 2},
        "marker": {"symbol": style.marker[0], "size": 8},
    }


def interval_text(low: float | None, high: float | None, format_spec: str = ".2f") -> str:
    """Format an interval: `89.00 to 90.50`, or `no interval`."""
    return "no interval" if low is None or high is None else f"{low:{format_spec}} to {high:{format_spec}}"


def log_axis_ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of an axis that shows `values`, ascending and above 0.

    The range is at least an octave, so that the lines of a single value do not fill all of it.
    """
    margin = 2**0.5 if len(values) < 2 else (values[-1] / values[0]) ** 0.06
    return (values[0] / margin, values[-1] * margin) if values else (1.0, 2.0)


def dodge_factor(position: int, count: int) -> float:
    """Return a factor that moves a line sideways by up to 3 %, so that error bars do not overlap."""
    middle = (count - 1) / 2
    return 2.0 ** (0.04 * (position - middle) / middle) if middle else 1.0


def data_uri(media_type: str, content: bytes) -> str:
    """Return the content as a data URI."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode('ascii')}"


def thumbnail(image: NDArray[np.uint8], *, side: int = 96) -> tuple[str, bytes]:
    """Return an image of at most `side` pixels as a file, with its media type.

    Small images are kept as they are (PNG, lossless); larger ones are reduced (JPEG).

    Args:
        image: uint8 (H, W, 3).
    """
    picture = Image.fromarray(image)
    buffer = io.BytesIO()
    if max(picture.size) <= side:
        picture.save(buffer, format="PNG", optimize=True)
        return "image/png", buffer.getvalue()
    picture.thumbnail((side, side))
    picture.save(buffer, format="JPEG", quality=85)
    return "image/jpeg", buffer.getvalue()


def image_grid(images: Sequence[NDArray[np.uint8]], captions: Sequence[str]) -> Figure:
    """Return images in rows of ten, each with its caption above.

    Args:
        images: uint8 (H, W, 3) each.
        captions: one per image; long ones are cut.
    """
    assert len(images) == len(captions)
    rows = max(1, -(-len(images) // _COLUMNS))
    with matplotlib_style():
        figure = Figure(figsize=(_COLUMNS, 1.35 * rows))
        grid: Any = figure.subplots(rows, _COLUMNS, squeeze=False, gridspec_kw={"wspace": 0.1, "hspace": 0.4})
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, image, caption in zip(grid.flat, images, captions, strict=False):
            axes.imshow(image, interpolation="nearest")
            axes.set_title(_cut(caption), fontsize=6, pad=2)
        return figure


def _cut(caption: str, length: int = 16) -> str:
    lines = [line if len(line) <= length else line[: length - 1] + "…" for line in caption.splitlines()]
    return "\n".join(lines)
