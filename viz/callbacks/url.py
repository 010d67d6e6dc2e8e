"""State of the page in its URL, so that a link restores it."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from dash import Dash, Input, Output

from pipeline.config.params import load_params
from viz import layout
from viz.color_by import COLORINGS
from viz.filter_settings import MAX_MIN_SAMPLES, SCORER_CHOICES
from viz.search import MAX_QUERY


class Control(NamedTuple):
    """A property that a link can set: its name, its initial value, and a check of values."""

    prop: str
    initial: Any
    accepts: Callable[[Any], bool]


def _one_of(keys: Collection[str]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in keys


def _number(low: float, high: float, *, integer: bool) -> Callable[[Any], bool]:
    # By type: True is an int in Python. NaN fails the comparison.
    return lambda value: type(value) in ((int,) if integer else (int, float)) and low <= value <= high


def _list_of(accepts: Callable[[Any], bool], lengths: Collection[int] | None = None) -> Callable[[Any], bool]:
    return lambda values: (
        isinstance(values, list) and (lengths is None or len(values) in lengths) and all(map(accepts, values))
    )


_ROW = _number(0, 2**53, integer=True)
# Other keys of the URL are ignored.
_CONTROLS: Mapping[str, Control] = {
    "view": Control("value", "explore", _one_of(layout.VIEWS)),
    "coloring": Control("value", "decision", _one_of(COLORINGS)),
    "classes": Control("value", [], _list_of(_ROW)),
    "scores": Control("value", [0, 1], _list_of(_number(0, 1, integer=False), (2,))),
    "width": Control("value", "both", _one_of(layout.WIDTHS)),
    "list": Control("value", "goes", _one_of(layout.LISTS)),
    "sort": Control("value", "suspect", _one_of(layout.SORTS)),
    "focus": Control("data", None, _ROW),
    "search": Control("value", "", lambda value: isinstance(value, str) and len(value) <= MAX_QUERY),
    "names": Control("value", ["names"], lambda value: value in ([], ["names"])),
    "size": Control("value", layout.TILE, _number(48, 240, integer=True)),
    "judge-b": Control("value", "dbscan", _one_of(SCORER_CHOICES)),
    "share-b": Control("value", 5, _number(0, 50, integer=False)),
    "min_samples-b": Control("value", 5, _number(1, MAX_MIN_SAMPLES, integer=True)),
}
# Control -> index of its initial network in the parameters.
_NETWORKS = {"network": 0, "network-b": -1}
# Controls whose values are texts, which a URL holds as they are.
_TEXTS = {"view", "coloring", "width", "list", "sort", "search", "judge-b", *_NETWORKS}


def read_link(search: str | None) -> dict[str, Any]:
    """Return the state in the query of a URL: JSON values by control; a value that is no JSON is a text.

    The state can also be one JSON object in the key `state`, as in links of version 1.0. It is empty if damaged.
    """
    try:
        query = {name: values[0] for name, values in parse_qs((search or "").removeprefix("?")).items()}
    except ValueError:
        return {}
    if "state" not in query:
        return {name: _value(name, text) for name, text in query.items()}
    state = _parsed(query["state"])
    return state if isinstance(state, dict) else {}


def _value(name: str, text: str) -> Any:
    # A network may have the name `5`.
    return text if name in _TEXTS else _parsed(text)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def initial_values(networks: Sequence[str]) -> dict[str, Any]:
    """Return the values of the controls on a new page."""
    initial = {name: control.initial for name, control in _CONTROLS.items()}
    return initial | {name: networks[index] for name, index in _NETWORKS.items()}


def restore(search: str | None, networks: Sequence[str]) -> dict[str, Any]:
    """Return the values of the controls from the URL, or their initial values where it has no valid ones."""
    initial, state = initial_values(networks), read_link(search)
    accepts = {name: control.accepts for name, control in _CONTROLS.items()} | dict.fromkeys(
        _NETWORKS, _one_of(networks)
    )
    return {
        name: state[name] if name in state and accepts[name](state[name]) else value for name, value in initial.items()
    }


def register(app: Dash, params: Path) -> None:
    """Read the URL when the page opens, and write it whenever a control changes."""
    properties = {name: control.prop for name, control in _CONTROLS.items()} | dict.fromkeys(_NETWORKS, "value")

    @app.callback(
        output={name: Output(name, prop) for name, prop in properties.items()} | {"initial": Output("initial", "data")},
        inputs=[Input("url", "search")],
    )
    def _restore(search: str | None) -> dict[str, Any]:
        networks = load_params(params, accept_old_keys=True).networks
        return restore(search, networks) | {"initial": initial_values(networks)}

    names = ["rule", *properties]
    app.clientside_callback(
        f"(initial, ...values) => window.batchsieve.remember({json.dumps(names)}, values, initial)",
        Output("url", "hash"),
        Input("initial", "data"),
        Input("rule", "data"),
        *(Input(name, prop) for name, prop in properties.items()),
    )
