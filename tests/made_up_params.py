"""The parameters that the tests begin with, and changes to them."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

PRESET = Path(__file__).parents[1] / "tests" / "params.yaml"


def digits_tree() -> dict[str, Any]:
    """As plain values, a new one each time."""
    tree: dict[str, Any] = YAML(typ="safe").load(PRESET)
    return tree


def digits_with(path: str, value: Any) -> dict[str, Any]:
    """The same with one key set, or removed where `value` is ..."""
    tree = digits_tree()
    *parents, last = path.split(".")
    node = tree
    for key in parents:
        node = node[key]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return tree
