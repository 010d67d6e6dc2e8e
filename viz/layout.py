"""Layout of the page: controls on the left, maps in the middle, the chosen image and the gallery on the right."""

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from pipeline.figures.curves import CURVE_HEIGHT
from pipeline.figures.explorer import no_map
from pipeline.figures.rendering import PLOTLY_CONFIG
from viz.color_by import COLORINGS
from viz.components import hint
from viz.filter_settings import AS_FILTERED, MAX_MIN_SAMPLES, SCORER_CHOICES

ALL = -1
"""Value for all classes in the picker of the class that the sliders set."""

EVERY_CLASS: dict[str, Any] = {"label": "all classes", "value": ALL}

VIEWS = {"explore": "Explore", "compare": "Compare", "training": "Training"}

WIDTHS = {"map": "embedding", "both": "embedding and images", "pictures": "images"}

SORTS = {
    "suspect": "most suspect first",
    "trusted": "least suspect first",
    "class": "by class",
    "sure": "most confident first",
}

LISTS = {
    "goes": "dropped",
    "selection": "selected",
    "shown": "all shown",
    "hand": "decided by hand",
    "planted": "labels changed on purpose",
    "a": "only A drops",
    "b": "only B drops",
    "both": "both drop",
}
"""Key -> name of each list of the gallery; the last three compare. Links store the keys."""

PROPOSAL_KINDS = {"share": "dropped fraction, for all networks", "limit": "threshold"}
"""Key -> name of what the dialog writes to params.yaml."""

GRAPH_CONFIG: Any = PLOTLY_CONFIG | {
    "displayModeBar": True,
    "scrollZoom": True,
    "modeBarButtonsToRemove": ["autoScale2d"],
}
_STATIC_CONFIG: Any = GRAPH_CONFIG | {"displayModeBar": False, "scrollZoom": False, "responsive": False}


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
            html.Main([*_maps(networks), html.Div(training, id="training-view")], id="middle"),
            html.Aside([*_chosen(), *_gallery()], id="images"),
            html.Footer(id="saved", role="status"),
            _parameters_dialog(len(networks)),
            _relabel_dialog(classes),
        ],
        id="page",
        className="explore both",
    )


def _stores(edited: str) -> list[Any]:
    initial: dict[str, Any] = {
        "rule": None,  # filter settings of the first map
        "rule-b": None,  # filter settings of the second map
        "drawn": None,  # artifacts that the first map shows
        "drawn-b": None,  # artifacts that the second map shows
        "selection": {"generation": None, "rows": [], "graph": "map"},  # on either map
        "drawn-around": None,  # lasso shapes on a map that draws only some points
        "offered": {"generation": None, "rows": []},  # shown part of the selection, which the buttons decide
        "focus": None,  # row of the chosen image
        "edited": edited,
    }  # fmt: skip
    stores = [dcc.Store(id=name, data=value) for name, value in initial.items()]
    return [dcc.Location(id="url", refresh=False), dcc.Interval(id="clock", interval=5000), *stores]


def _header(networks: Sequence[str]) -> html.Header:
    return html.Header(
        [
            html.H1("batchsieve"),
            dcc.RadioItems(VIEWS, "explore", id="view", inline=True, className="tabs"),
            dcc.Dropdown(list(networks), networks[0], id="network", clearable=False),
            dcc.RadioItems(WIDTHS, "both", id="width", inline=True, className="tabs"),
            html.Button("Dark / light", id="theme", className="plain"),
        ]
    )


def _colors() -> list[Any]:
    names = {key: name for key, (name, _) in COLORINGS.items()}
    return [*_labeled("Color by", dcc.Dropdown(names, "decision", id="coloring", clearable=False))]


def _filters(classes: list[Any]) -> list[Any]:
    scores = dcc.RangeSlider(0, 1, step=0.01, value=[0, 1], marks=None, id="scores")
    return [
        *_labeled("Classes shown", dcc.Dropdown(classes, [], id="classes", multi=True, placeholder="all")),
        *_labeled("Scores shown (above 0.5: dropped)", scores),
    ]


def _filter_controls(classes: list[Any]) -> list[Any]:
    return [
        html.H2("Filter preview"),
        *_labeled("Scorer", dcc.Dropdown(dict(SCORER_CHOICES), AS_FILTERED, id="judge", clearable=False)),
        *_labeled("Settings for", dcc.Dropdown([EVERY_CLASS, *classes], ALL, id="scope", clearable=False)),
        html.Div("Threshold", id="unit", className="name"),
        dcc.Slider(id="threshold", min=0, max=1, value=1, step=0.01, marks=None, updatemode="drag"),
        *_labeled("Dropped (%)", dcc.Slider(0, 50, 0.1, value=5, marks=None, id="share", updatemode="drag")),
        html.Div(
            _labeled(
                "min_samples",
                dcc.Input(5, id="min_samples", type="number", min=1, max=MAX_MIN_SAMPLES, step=1),
            ),
            id="min_samples-row",
        ),
        html.P(id="used", className="hint"),
        html.Div(
            [html.Button("Reset to filter", id="reset"), html.Button("Write to params.yaml…", id="propose")],
            className="buttons",
        ),
        html.Div(id="table"),
        dcc.Graph(figure=no_map(), id="curve", config=_STATIC_CONFIG, responsive=False, style={"height": CURVE_HEIGHT}),
    ]


def _maps(networks: Sequence[str]) -> list[Any]:
    graph = dcc.Graph(figure=no_map(), id="map", config=GRAPH_CONFIG, clear_on_unhover=True, responsive=True)
    other = dcc.Graph(figure=no_map(), id="other", config=GRAPH_CONFIG, clear_on_unhover=True, responsive=True)
    b = html.Div(
        [
            html.B("B"),
            html.Div(
                [
                    dcc.Dropdown(list(networks), networks[-1], id="network-b", clearable=False),
                    dcc.Dropdown(dict(SCORER_CHOICES), "dbscan", id="judge-b", clearable=False),
                ]
            ),
            html.Div(
                [
                    html.Span("dropped (%)"),
                    dcc.Input(5, id="share-b", type="number", min=0, max=50, step=0.01),
                    html.Span("min_samples"),
                    dcc.Input(5, id="min_samples-b", type="number", min=1, max=MAX_MIN_SAMPLES, step=1),
                ],
                className="numbers",
            ),
        ],
        id="b",
    )
    a = html.Div([html.B("A"), html.Span("settings of the controls on the left")], id="a")
    return [
        html.Div(id="legend"),
        html.Div(id="notice", className="hint"),
        html.Div(
            [
                html.Div([a, graph, dcc.Tooltip(id="tooltip")], id="left"),
                html.Div([b, other, dcc.Tooltip(id="tooltip-b")], id="right"),
            ],
            id="maps",
        ),
        html.Div(id="differences"),
    ]


def _chosen() -> list[Any]:
    return [
        html.Div(hint(), id="card"),
        html.Div(
            [
                dcc.Input(id="note", type="text", placeholder="note (optional)", maxLength=500),
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
    return [
        html.H2("Images"),
        html.Div(
            [
                dcc.Dropdown(LISTS, "goes", id="list", clearable=False),
                dcc.Dropdown(SORTS, "suspect", id="sort", clearable=False),
            ],
            className="row",
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
            className="buttons",
        ),
        dcc.Store(id="page-number", data=0),
        dcc.Loading(html.Div(id="grid", className="tiles"), delay_show=400),
        html.P("Keys: arrows choose, K keeps, D drops, R relabels, C clears the override, U undoes.", className="hint"),
    ]


def _parameters_dialog(n_networks: int) -> html.Dialog:
    return html.Dialog(
        [
            html.H2("Write to params.yaml"),
            dcc.RadioItems(
                PROPOSAL_KINDS, "limit" if n_networks == 1 else "share", id="write-as", inline=True, className="tabs"
            ),
            html.Pre(id="difference"),
            html.P(id="written", role="status"),
            html.Div(
                [html.Button("Write", id="write"), html.Button("Close", id="close")],
                className="buttons",
            ),
        ],
        id="dialog",
    )


def _relabel_dialog(classes: Sequence[tuple[int, str]]) -> html.Dialog:
    """Return the choice of a class. The browser's own list finds a class by the letters typed; see assets/page.js."""
    return html.Dialog(
        [
            html.H2("New label"),
            html.P(id="relabel-from"),
            html.Select(
                [html.Option(label=name, value=str(label)) for label, name in classes], id="new-label", size=12
            ),
            html.Div(
                [html.Button("Relabel", id="relabel-confirm"), html.Button("Cancel", id="relabel-cancel")],
                className="buttons",
            ),
        ],
        id="relabel-dialog",
    )


def _labeled(text: str, control: Any) -> list[Any]:
    return [html.Div(text, className="name"), control]
