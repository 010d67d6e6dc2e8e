"""State of the page in its URL, so that a link restores it: one plain key and value for each control that changed."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from dash import Dash, Input, Output
from dash.exceptions import PreventUpdate

from pipeline.config.params import load_params
from pipeline.errors import InputError
from viz import layout
from viz.color_by import COLORINGS
from viz.filter_settings import MAX_MIN_SAMPLES, SCORER_CHOICES
from viz.search import MAX_QUERY


class Control(NamedTuple):
    """A property that a link can set: its key in the URL, its initial value, and a parser, which raises ValueError."""

    key: str
    prop: str
    initial: Any
    parse: Callable[[str], Any]


def _one_of(keys: Collection[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in keys:
            raise ValueError
        return text

    return parse


def _number(low: float, high: float, *, integer: bool) -> Callable[[str], int | float]:
    def parse(text: str) -> int | float:
        if not re.fullmatch(r"[0-9]{1,16}" if integer else r"[0-9.e+-]{1,32}", text):
            raise ValueError
        number = int(text) if integer else float(text)
        if not low <= number <= high:
            raise ValueError
        return number

    return parse


def _list_of(parse: Callable[[str], Any], length: int | None = None) -> Callable[[str], list[Any]]:
    def parse_all(text: str) -> list[Any]:
        values = [parse(part) for part in text.split(",")]
        if length not in (None, len(values)):
            raise ValueError
        return values

    return parse_all


def _search(text: str) -> str:
    if len(text) > MAX_QUERY:
        raise ValueError
    return text


def _off(text: str) -> list[Any]:
    """Return the value of an unchecked box."""
    _one_of(["off"])(text)
    return []


_ROW = _number(0, 2**53, integer=True)
# Other keys of the URL are ignored.
_CONTROLS: Mapping[str, Control] = {
    "view": Control("view", "value", "explore", _one_of(layout.VIEWS)),
    "coloring": Control("color", "value", "decision", _one_of(COLORINGS)),
    "classes": Control("classes", "value", [], _list_of(_ROW)),
    "scores": Control("scores", "value", [0, 1], _list_of(_number(0, 1, integer=False), 2)),
    "width": Control("width", "value", "both", _one_of(layout.WIDTHS)),
    "list": Control("list", "value", "dropped", _one_of(layout.LISTS)),
    "sort": Control("sort", "value", "suspect", _one_of(layout.SORTS)),
    "focus": Control("image", "data", None, _ROW),
    "search": Control("search", "value", "", _search),
    "names": Control("names", "value", ["names"], _off),
    "size": Control("size", "value", layout.TILE, _number(48, 240, integer=True)),
    "scorer-b": Control("scorer-b", "value", "dbscan", _one_of(SCORER_CHOICES)),
    "share-b": Control("share-b", "value", 5, _number(0, 100, integer=False)),
    "min_samples-b": Control("min_samples-b", "value", 5, _number(1, MAX_MIN_SAMPLES, integer=True)),
}
# Control -> index of its initial network in the parameters.
_NETWORKS = {"network": 0, "network-b": -1}


def _controls(networks: Sequence[str]) -> dict[str, Control]:
    return {**_CONTROLS} | {
        name: Control(name, "value", networks[index], _one_of(networks)) for name, index in _NETWORKS.items()
    }


def _read(search: str | None) -> dict[str, str]:
    """Return key -> text of the query of a URL; empty if it is damaged."""
    try:
        return {key: values[0] for key, values in parse_qs((search or "").removeprefix("?")).items()}
    except ValueError:
        return {}


def read_settings(search: str | None) -> dict[str, Any]:
    """Return the filter settings in the query of a URL for `state.settings_from_json`, which checks them.

    The keys are `scorer`, `threshold`, `min_samples`, and `per_class` as in `3:0.5:5,7:0.8:10`: label, threshold and
    min_samples of each class with separate settings. Empty texts and missing keys are those of the filter.
    """
    query = _read(search)
    per_class = [part.split(":") for part in query.get("per_class", "").split(",") if part]
    return {
        **({"scorer_choice": query["scorer"]} if "scorer" in query else {}),
        "limit": _limit([query.get("threshold", ""), query.get("min_samples", "")]),
        "per_class": {label: _limit(values) for label, *values in per_class},
    }


def _limit(values: Sequence[str]) -> dict[str, str]:
    return {name: text for name, text in zip(("threshold", "min_samples"), values, strict=False) if text}


def initial_values(networks: Sequence[str]) -> dict[str, Any]:
    """Return the values of the controls on a new page."""
    return {name: control.initial for name, control in _controls(networks).items()}


def restore(search: str | None, networks: Sequence[str]) -> dict[str, Any]:
    """Return the values of the controls from the URL, or their initial values where it has no valid ones."""
    query = _read(search)
    return {name: _value(control, query.get(control.key)) for name, control in _controls(networks).items()}


def _value(control: Control, text: str | None) -> Any:
    try:
        return control.initial if text is None else control.parse(text)
    except ValueError:
        return control.initial


def register(app: Dash, params: Path) -> None:
    """Read the URL when the page opens, and write it whenever a control changes; see assets/address.js."""
    properties = {name: control.prop for name, control in _CONTROLS.items()} | dict.fromkeys(_NETWORKS, "value")

    @app.callback(
        output={name: Output(name, prop) for name, prop in properties.items()} | {"initial": Output("initial", "data")},
        inputs=[Input("url", "search")],
    )
    def _restore(search: str | None) -> dict[str, Any]:
        try:
            networks = load_params(params, accept_old_keys=True).networks
        except InputError:
            # The file has changed since the page was built, which has the initial values.
            raise PreventUpdate from None
        return restore(search, networks) | {"initial": initial_values(networks)}

    keys = {name: _CONTROLS[name].key if name in _CONTROLS else name for name in properties}
    app.clientside_callback(
        f"(...values) => window.batchsieve.remember({json.dumps(keys)}, ...values)",
        Output("url", "hash"),
        Input("initial", "data"),
        Input("settings", "data"),
        *(Input(name, prop) for name, prop in properties.items()),
    )
