"""The page: choices on the left, the map, and what it says of the chosen point on the right."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from dash import dcc, html
from numpy.typing import NDArray

from viz.data import Points
from viz.figures.explorer import COLORINGS

ALL_CLASSES = -1
"""Value of the class picker that stands for all of them."""

EVERY_CLASS: dict[str, Any] = {"label": "all", "value": ALL_CLASSES}

MOST_MIN_SAMPLES = 100

# Without the first two, plotly's toolbar offers to upload the map to a server.
GRAPH_CONFIG: Any = {
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "displaylogo": False,
    "scrollZoom": True,
    "doubleClick": "autosize",
    # Resetting would go back to the range at the last redrawing.
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "resetScale2d"],
}


def page(networks: Sequence[str], min_samples: int) -> html.Div:
    """The whole page, before anything has been read."""
    return html.Div([_choices(networks, min_samples), _map(), html.Aside(id="card", children=hint())], id="page")


def hint() -> html.P:
    """What stands where a clicked point will be described."""
    return html.P("Click a point to see its picture beside its nearest neighbours.", className="hint")


def problem(message: str) -> html.Div:
    """In the place of what cannot be shown; `message` says what to run."""
    return html.Div([html.Strong("Nothing to show yet"), html.P(message)], className="problem", role="alert")


def class_table(points: Points, keep: NDArray[np.bool_], noise: NDArray[np.bool_], *, setting: str) -> html.Table:
    """Noise share and kept images of all and of each class, beside what the filter has written.

    Args:
        keep, noise: (N,) each, at the radius on the slider.
        setting: names that radius.
    """
    head = ("class", "images", "noise", "kept", "filter kept")
    rows = [("all", np.ones(len(keep), dtype=bool))]
    rows += [(name, points.labels == label) for label, name in enumerate(points.class_names)]
    return html.Table(
        [
            html.Caption(setting),
            html.Thead(html.Tr([html.Th(text) for text in head])),
            html.Tbody([_row(name, members, keep, noise, points.keep) for name, members in rows if members.any()]),
        ]
    )


def point_lines(points: Points, row: int) -> list[html.P]:
    """The text about one image."""
    label, predicted = (points.class_names[values[row]] for values in (points.labels, points.predicted))
    return [
        html.P(html.Strong(f"#{row}  {label}")),
        html.P(f"predicted {predicted}" + ("" if label == predicted else "  (another class)")),
        html.P(f"score {points.score[row]:.3f}"),
        html.P(points.reason[row].as_py()),
    ]


def tooltip(points: Points, row: int) -> list[Any]:
    """What hovering shows."""
    return [picture(points, row), *point_lines(points, row)]


def card(points: Points, row: int) -> list[Any]:
    """What a click shows: the image, and its nearest neighbours with their labels."""
    neighbours = [
        html.Figure([picture(points, other), html.Figcaption([f"#{other}", html.Br(), _label(points, other)])])
        for other in points.neighbours[row].tolist()
    ]
    return [
        html.Div([picture(points, row), html.Div(point_lines(points, row))], className="chosen"),
        html.H2("Nearest by features"),
        html.Div(neighbours, className="neighbours"),
    ]


def picture(points: Points, row: int) -> html.Img:
    """The image; the stamp in the address makes a browser fetch it again after `prepare` has run again."""
    return html.Img(src=f"/thumbnail/{row}.png?{points.stamp}", alt=f"image {row}: {_label(points, row)}")


def _choices(networks: Sequence[str], min_samples: int) -> html.Div:
    return html.Div(
        [
            html.H1("batchsieve"),
            *_named("Network", dcc.Dropdown(list(networks), networks[0], id="network", clearable=False)),
            *_named("Class", dcc.Dropdown([EVERY_CLASS], ALL_CLASSES, id="class", clearable=False)),
            *_named("Colour by", dcc.RadioItems(COLORINGS, next(iter(COLORINGS)), id="coloring", inline=True)),
            *_named("eps (map units)", _eps_slider()),
            *_named(
                "min_samples",
                dcc.Input(min_samples, id="min_samples", type="number", min=1, max=MOST_MIN_SAMPLES, step=1),
            ),
            html.Div(id="table"),
        ],
        id="choices",
    )


def _eps_slider() -> dcc.Slider:
    """Its range is the network's; see `callbacks.network_controls`."""
    return dcc.Slider(id="eps", min=0, max=1, value=1, step=0.01, marks=None, updatemode="drag")


def _map() -> html.Div:
    graph = dcc.Graph(id="map", config=GRAPH_CONFIG, clear_on_unhover=True, responsive=True)
    return html.Div([html.Div(id="problem"), graph, dcc.Tooltip(id="tooltip")], id="middle")


def _named(text: str, control: Any) -> tuple[html.Div, Any]:
    return html.Div(text, className="name"), control


def _label(points: Points, row: int) -> str:
    return points.class_names[int(points.labels[row])]


def _row(
    name: str,
    members: NDArray[np.bool_],
    keep: NDArray[np.bool_],
    noise: NDArray[np.bool_],
    written: NDArray[np.bool_],
) -> html.Tr:
    values = (
        f"{members.sum():,}",
        f"{noise[members].mean():.1%}",
        f"{keep[members].sum():,}",
        f"{written[members].sum():,}",
    )
    return html.Tr([html.Th(name), *(html.Td(value) for value in values)])
