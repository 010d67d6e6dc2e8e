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
    "judge-b": Control("value", "dbscan", _one_of(SCORER_CHOICES)),
    "share-b": Control("value", 5, _number(0, 50, integer=False)),
    "min_samples-b": Control("value", 5, _number(1, MAX_MIN_SAMPLES, integer=True)),
}
# Control -> index of its initial network in the parameters.
_NETWORKS = {"network": 0, "network-b": -1}


def read_link(search: str | None) -> dict[str, Any]:
    """Return the state in the query of a URL; empty if damaged."""
    query = parse_qs((search or "").removeprefix("?"))
    try:
        state = json.loads(query["state"][0])
    except (KeyError, ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


def restore(search: str | None, networks: Sequence[str]) -> dict[str, Any]:
    """Return the values of the controls from the URL, or their initial values where it has no valid ones."""
    controls = {**_CONTROLS}
    for name, index in _NETWORKS.items():
        controls[name] = Control("value", networks[index], _one_of(networks))
    state = read_link(search)
    return {
        name: state[name] if name in state and control.accepts(state[name]) else control.initial
        for name, control in controls.items()
    }


def register(app: Dash, params: Path) -> None:
    """Read the URL when the page opens, and write it whenever a control changes."""
    properties = {name: control.prop for name, control in _CONTROLS.items()} | dict.fromkeys(_NETWORKS, "value")
    app.callback(
        output={name: Output(name, prop) for name, prop in properties.items()}, inputs=[Input("url", "search")]
    )(lambda search: restore(search, load_params(params, accept_old_keys=True).networks))
    names = ["rule", *properties]
    app.clientside_callback(
        f"(...values) => window.batchsieve.remember({json.dumps(names)}, values)",
        Output("url", "hash"),
        Input("rule", "data"),
        *(Input(name, prop) for name, prop in properties.items()),
    )
