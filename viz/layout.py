"""Layout of the page: controls on the left, maps in the middle, the chosen image and the gallery on the right."""

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from pipeline.figures.curves import CURVE_HEIGHT
from pipeline.figures.embeddings import no_map
from pipeline.figures.rendering import PLOTLY_CONFIG
from viz.color_by import COLORINGS
from viz.components import aria_label, hint, labeled, named
from viz.decisions import MAX_NOTE
from viz.dialogs import dialogs
from viz.drawings import empty_drawing
from viz.filter_settings import AS_FILTERED, SCORER_CHOICES
from viz.number_ranges import RANGES
from viz.search import MAX_QUERY

ALL = -1
"""Value for all classes in the picker of the class that the sliders set."""

EVERY_CLASS: dict[str, Any] = {"label": "all classes", "value": ALL}

VIEWS = {"explore": "Explore", "review": "Review", "compare": "Compare", "training": "Training"}

WIDTHS = {"map": "embedding", "both": "embedding and images", "pictures": "images"}

SORTS = {
    "suspect": "most suspect first",
    "least_suspect": "least suspect first",
    "class": "by class",
    "most_confident": "most confident first",
}

COMPARING_LISTS = {"differ": "A and B differ", "a": "only A drops", "b": "only B drops", "both": "both drop"}
"""Lists of the gallery that compare two settings."""

LISTS = {
    "dropped": "dropped",
    "selection": "selected",
    "shown": "all shown",
    "hand": "decided by hand",
    "planted": "labels changed on purpose",
} | COMPARING_LISTS
"""Key -> name of each list of the gallery. Links store the keys."""

# Percent. Filters rarely drop more, and a shorter slider is more exact; the box next to it takes more.
_SLIDER_SHARE = 50

TILE = 68
"""Initial width of an image of the gallery, in pixels."""

GRAPH_CONFIG: Any = PLOTLY_CONFIG | {
    "displayModeBar": True,
    "scrollZoom": True,
    "modeBarButtonsToRemove": ["autoScale2d"],
}
_STATIC_CONFIG: Any = GRAPH_CONFIG | {"displayModeBar": False, "scrollZoom": False}


def page(
    networks: Sequence[str], classes: Sequence[tuple[int, str]], training: Any = None, *, edited: str = ""
) -> html.Div:
    """Return the page without data.

    Args:
        networks: options of the picker.
        classes: label and name of each option of the class pickers.
        training: content of the view Training.
        edited: stamp of the file of overrides.
    """
    options = [{"label": name, "value": label} for label, name in classes]
    return html.Div(
        [
            *_stores(edited),
            _header(networks),
            html.Div([html.Div(id="problem"), html.Div(id="banner"), html.Div(id="planted", role="note")], id="alerts"),
            html.Aside([*_colors(), *_filters(options), *_filter_controls(options)], id="choices"),
            html.Main([*_maps(networks), html.Div(id="review"), html.Div(training, id="training-view")], id="middle"),
            html.Aside([*_chosen(), *_gallery(), html.Div(id="decisions")], id="images"),
            html.Footer(id="saved", role="status"),
            *dialogs(classes),
        ],
        id="page",
        className="explore both",
    )


def _stores(edited: str) -> list[Any]:
    initial: dict[str, Any] = {
        "settings": None,  # filter settings of the first map
        "settings-b": None,  # filter settings of the second map
        "map-drawing": empty_drawing(),  # see drawings.py
        "other-drawing": empty_drawing(),
        "plotted": None,  # artifacts that the first map shows
        "zoomed": None,  # last event of the map that needs other points
        "plotted-b": None,  # artifacts that the second map shows
        "selection": {"generation": None, "rows": [], "graph": "map"},  # on either map
        "lasso-shapes": None,  # outlines, on a map that draws only some points
        "moved": None,  # control that set the threshold last
        "matrix-cell": None,  # label and suggested label of the clicked cell
        "queue": None,  # rows of the view Review
        "review-parts": None,  # components of the view Review; see assets/keys.js
        "decision-parts": None,  # components of the list of decisions
        "decisions-page": 0,  # page of the list of decisions
        "initial": None,  # values of the controls that the address leaves out
        "list-before": None,  # list of the gallery before a selection
        "offered": {"generation": None, "rows": []},  # shown part of the selection, which the buttons decide
        "focus": None,  # row of the chosen image
        "edited": edited,
        # What a view hides keeps the values that it had before; see assets/page.js.
        "map-focus": None,  # row of the chosen image on the maps and the card
        "map-edited": edited,  # decisions on the maps, the card and the gallery
        "review-focus": None,  # row of the chosen image in the view Review
    }  # fmt: skip
    stores = [dcc.Store(id=name, data=value) for name, value in initial.items()]
    return [dcc.Location(id="url", refresh=False), dcc.Interval(id="clock", interval=5000), *stores]


def _header(networks: Sequence[str]) -> html.Header:
    return html.Header(
        [
            html.H1("batchsieve"),
            dcc.RadioItems(VIEWS, "explore", id="view", inline=True, className="tabs"),
            *named("network", dcc.Dropdown(list(networks), networks[0], id="network", clearable=False)),
            dcc.RadioItems(WIDTHS, "both", id="width", inline=True, className="tabs"),
            html.Button([html.Kbd("?"), " Keys"], id="help-open", className="plain"),
            html.Button("Dark / light", id="theme", className="plain"),
        ]
    )


def _colors() -> list[Any]:
    names = {key: name for key, (name, _) in COLORINGS.items()}
    return [
        *labeled("Color by", dcc.Dropdown(names, "decision", id="coloring", clearable=False)),
        dcc.Checklist({"names": "class names on the embedding"}, ["names"], id="names"),
    ]


def _filters(classes: list[Any]) -> list[Any]:
    scores = dcc.RangeSlider(0, 1, step=0.01, value=[0, 1], marks=None, id="scores")
    search = dcc.Input(
        "", id="search", type="text", debounce=0.4, maxLength=MAX_QUERY, placeholder="path, class or reason",
    )  # fmt: skip
    return [
        *labeled("Search", search),
        *labeled("Classes shown", dcc.Dropdown(classes, [], id="classes", multi=True, placeholder="all")),
        html.Div("Scores shown (above 0.5: dropped)", className="name"),
        html.Div(scores, role="group", **aria_label("scores shown")),
    ]


def _filter_controls(classes: list[Any]) -> list[Any]:
    return [
        html.H2("Filter preview"),
        *labeled("Scorer", dcc.Dropdown(dict(SCORER_CHOICES), AS_FILTERED, id="scorer", clearable=False)),
        *labeled("Settings for", dcc.Dropdown([EVERY_CLASS, *classes], ALL, id="scope", clearable=False)),
        html.Label("Threshold", id="unit", htmlFor="threshold-box", className="name"),
        _slider("threshold", 0, 1, 0.01, 1),
        html.Label("Dropped (%)", htmlFor="share-box", className="name"),
        _slider("share", 0, _SLIDER_SHARE, 0.1, 5),
        html.Div(labeled("min_samples", number_box("min_samples", "min_samples", 5)), id="min_samples-row"),
        html.P(id="number-problem", className="number-problem", role="alert"),
        html.P(id="used", className="hint"),
        html.Div(
            [html.Button("Reset to filter", id="reset"), html.Button("Write to params.yaml…", id="propose")],
            className="buttons",
        ),
        html.Div(id="table"),
        html.Button(
            "Run the filter again", id="run-filter", title="with params.yaml and the decisions, by `dvc repro`"
        ),
        html.P(id="run-status", role="status"),
        html.Div(id="matrix"),
        dcc.Graph(figure=no_map(), id="curve", config=_STATIC_CONFIG, responsive=True, style={"height": CURVE_HEIGHT}),
    ]


def _maps(networks: Sequence[str]) -> list[Any]:
    graph = dcc.Graph(figure=no_map(), id="map", config=GRAPH_CONFIG, clear_on_unhover=True, responsive=True)
    other = dcc.Graph(figure=no_map(), id="other", config=GRAPH_CONFIG, clear_on_unhover=True, responsive=True)
    return [
        _compared_settings(networks),
        html.Div(id="legend"),
        html.Div(id="notice", className="hint"),
        html.Div(
            [
                html.Div([graph, dcc.Tooltip(id="tooltip")], id="left"),
                html.Div([other, dcc.Tooltip(id="tooltip-b")], id="right"),
            ],
            id="maps",
        ),
    ]


def _compared_settings(networks: Sequence[str]) -> html.Div:
    """Return the bar above the maps of a comparison."""
    return html.Div(
        [
            html.Div([html.B("A"), html.Span("settings of the controls on the left")]),
            html.Div(
                [
                    html.B("B"),
                    *named("network of B", dcc.Dropdown(list(networks), networks[-1], id="network-b", clearable=False)),
                    *named("scorer of B", dcc.Dropdown(dict(SCORER_CHOICES), "dbscan", id="scorer-b", clearable=False)),
                    html.Label("dropped (%)", htmlFor="share-b"),
                    number_box("share-b", "share", 5),
                    html.Label("min_samples", htmlFor="min_samples-b"),
                    number_box("min_samples-b", "min_samples", 5),
                ],
            ),
            html.P(id="number-problem-b", className="number-problem", role="alert"),
            html.Div(id="differences"),
        ],
        id="compared",
    )


def _chosen() -> list[Any]:
    return [
        html.Div(hint(), id="card"),
        html.Div(
            [
                dcc.Input(id="note", type="text", placeholder="note (optional)", maxLength=MAX_NOTE),
                html.Button([html.U("K"), "eep"], id="keep", className="kept"),
                html.Button([html.U("D"), "rop"], id="drop", className="dropped"),
                html.Button([html.U("R"), "elabel…"], id="relabel", title="keep with another label"),
                html.Button([html.U("C"), "lear"], id="clear", title="remove the override: the filter decides"),
                html.Button([html.U("U"), "ndo"], id="undo", title="undo the last action of this window"),
            ],
            className="buttons",
        ),
    ]


def _gallery() -> list[Any]:
    size = dcc.Slider(48, 240, 4, value=TILE, marks=None, id="size", updatemode="drag", allow_direct_input=False)
    return [
        html.H2("Images"),
        html.Div(
            [
                *named("list", dcc.Dropdown(LISTS, "dropped", id="list", clearable=False)),
                *named("order", dcc.Dropdown(SORTS, "suspect", id="sort", clearable=False)),
            ],
            className="row",
        ),
        html.Div(
            [html.Span("Size", className="hint"), size], className="size gallery", role="group", **aria_label("size")
        ),
        html.Div(
            [
                html.Button("◀", id="previous", title="previous page (Page Up)"),
                html.Span(id="place"),
                html.Button("▶", id="next", title="next page (Page Down)"),
                html.Button("Keep selection", id="keep-selection", disabled=True),
                html.Button("Drop selection", id="drop-selection", disabled=True),
                html.Button("CSV", id="csv", title="save this list as CSV"),
                dcc.Download(id="download"),
            ],
            className="buttons gallery",
        ),
        dcc.Store(id="page-number", data=0),
        html.P("Under each image: its label, and → the suggested label if it differs.", className="hint gallery"),
        html.Div(dcc.Loading(html.Div(id="grid", className="tiles"), delay_show=400), className="gallery"),
    ]


def _slider(name: str, low: float, high: float, step: float, value: float) -> html.Div:
    """Return a slider next to a box for the same number. The box of Dash's slider would hide bad numbers.

    Args:
        name: id of the slider, and key of `RANGES`, which the box has.
        low, high, step, value: of the slider.
    """
    slider = dcc.Slider(
        low, high, step, value=value, marks=None, id=name, updatemode="drag", allow_direct_input=False,
    )  # fmt: skip
    box = number_box(f"{name}-box", name, value, debounce=True)
    return html.Div([slider, box], className="slider", role="group", **aria_label(RANGES[name].name))


def number_box(identifier: str, control: str, value: float, *, debounce: bool = False) -> dcc.Input:
    """Return a box for a number of a control of `RANGES`. With `debounce`, Enter or leaving it sends the number."""
    return dcc.Input(
        value, id=identifier, type="number", min=RANGES[control].low, max=RANGES[control].high,
        step=1 if RANGES[control].integer else "any", debounce=debounce,
    )  # fmt: skip
