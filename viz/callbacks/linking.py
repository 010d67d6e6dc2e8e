"""The page's address holds what it shows, so that a link restores it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from dash import Dash, Input, Output

# Control -> (its property, what it begins with). Whatever else the address names is not looked at.
_CONTROLS: Mapping[str, tuple[str, Any]] = {
    "view": ("value", "explore"),
    "network": ("value", None),
    "coloring": ("value", "decision"),
    "classes": ("value", []),
    "scores": ("value", [0, 1]),
    "width": ("value", "both"),
    "list": ("value", "goes"),
    "sort": ("value", "suspect"),
    "focus": ("data", None),
    "network-b": ("value", None),
    "judge-b": ("value", "dbscan"),
    "share-b": ("value", 5),
    "min_samples-b": ("value", 5),
}


def read_link(search: str | None) -> dict[str, Any]:
    """What the query of an address says of the page; what is damaged is left out."""
    found = parse_qs((search or "").removeprefix("?"))
    try:
        state = json.loads(found["state"][0])
    except (KeyError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def restore(search: str | None, networks: Sequence[str]) -> dict[str, Any]:
    """Values of the controls, from the address or what they begin with."""
    state = read_link(search)
    values = {name: state.get(name, initial) for name, (_, initial) in _CONTROLS.items()}
    for name in ("network", "network-b"):
        if values[name] not in networks:
            values[name] = networks[0 if name == "network" else -1]
    return values


def register(app: Dash, networks: Sequence[str]) -> None:
    """Read the address when the page opens, and write it whenever a control moves."""
    app.callback(
        output={name: Output(name, prop) for name, (prop, _) in _CONTROLS.items()}, inputs=[Input("url", "search")]
    )(lambda search: restore(search, networks))
    names = ["rule", *_CONTROLS]
    app.clientside_callback(
        f"(...values) => window.batchsieve.remember({json.dumps(names)}, values)",
        Output("url", "hash"),
        Input("rule", "data"),
        *(Input(name, prop) for name, (prop, _) in _CONTROLS.items()),
    )
