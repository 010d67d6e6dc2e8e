import json
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from viz.callbacks.url import initial_values, read_link, restore
from viz.color_by import COLORINGS
from viz.filter_settings import SCORER_CHOICES, FilterSettings, Limit
from viz.layout import LISTS, SORTS, VIEWS, WIDTHS
from viz.state import settings_from_json, settings_to_json

_NETWORKS = ["resnet18", "resnet34"]
_DEFAULTS = restore(None, _NETWORKS)

_RULES = st.builds(
    FilterSettings,
    scorer_choice=st.sampled_from(sorted(SCORER_CHOICES)),
    limit=st.builds(Limit, threshold=st.none() | st.floats(1e-9, 1e9), min_samples=st.integers(1, 100)),
    per_class=st.dictionaries(st.integers(0, 999), st.builds(Limit, threshold=st.floats(1e-9, 1e9)), max_size=4),
)
_STATES = st.fixed_dictionaries(
    {
        "view": st.sampled_from(sorted(VIEWS)),
        "network": st.sampled_from(_NETWORKS),
        "coloring": st.sampled_from(sorted(COLORINGS)),
        "classes": st.lists(st.integers(0, 999)),
        "scores": st.tuples(st.floats(0, 1), st.floats(0, 1)).map(lambda pair: sorted(pair)),
        "width": st.sampled_from(sorted(WIDTHS)),
        "list": st.sampled_from(sorted(LISTS)),
        "sort": st.sampled_from(sorted(SORTS)),
        "focus": st.none() | st.integers(0, 10**6),
        "network-b": st.sampled_from(_NETWORKS),
        "judge-b": st.sampled_from(sorted(SCORER_CHOICES)),
        "share-b": st.floats(0, 50),
        "min_samples-b": st.integers(1, 100),
        "search": st.text(max_size=200).filter(lambda text: text.isprintable() or not text),
        "names": st.sampled_from([[], ["names"]]),
        "size": st.integers(48, 240),
    }
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(sorted(_DEFAULTS)), inner),
    max_leaves=9,
)


def _link(state: Any) -> str:
    """Return a link of version 1.0: one JSON object."""
    return "?" + urlencode({"state": json.dumps(state)})


def _short(state: dict[str, Any]) -> str:
    """Return a link as the page writes it: texts as they are, other values as JSON."""
    return "?" + urlencode({name: v if isinstance(v, str) else json.dumps(v) for name, v in state.items()})


@given(state=_STATES, rule=_RULES)
def test_a_link_restores_its_state(state: dict[str, Any], rule: FilterSettings) -> None:
    for write in (_link, _short):
        link = write({**state, "rule": settings_to_json(rule)})
        assert restore(link, _NETWORKS) == state
        assert settings_from_json(read_link(link)["rule"]) == rule


def test_a_short_link_has_only_what_differs() -> None:
    values = restore("?coloring=class&focus=21&search=polar+bear", _NETWORKS)
    assert values == _DEFAULTS | {"coloring": "class", "focus": 21, "search": "polar bear"}
    assert initial_values(_NETWORKS) == _DEFAULTS
    # A number is a text where a text belongs.
    assert restore("?network=18", ["resnet18", "18"])["network"] == "18"
    assert restore("?search=18", _NETWORKS)["search"] == "18"


def test_without_a_link_the_first_and_last_network_are_compared() -> None:
    assert (_DEFAULTS["network"], _DEFAULTS["network-b"]) == ("resnet18", "resnet34")
    assert (_DEFAULTS["view"], _DEFAULTS["list"], _DEFAULTS["focus"]) == ("explore", "goes", None)


@given(search=st.text() | st.text().map(lambda text: f"?state={text}") | _JSON.map(_link))
@example(search="?state=" + "[" * 100_000)
@example(search="?state=" + "1" * 10_000)
@example(search=_link({name: [name] for name in _DEFAULTS}))
@example(search=_link(dict.fromkeys(_DEFAULTS, True)))
@example(search=_short(dict.fromkeys(_DEFAULTS, True)))
@example(search="?focus=" + "[" * 100_000)
@example(search="?focus=" + "1" * 10_000)
def test_a_damaged_link_gives_valid_values(search: str) -> None:
    values = restore(search, _NETWORKS)
    assert values.keys() == _DEFAULTS.keys()
    # Restored values are in the range of the control, or are the default.
    assert restore(_link(values), _NETWORKS) == values


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("view", "nowhere"), ("network", "../../etc"), ("coloring", "class "), ("classes", ["0"]), ("classes", 3),
        ("scores", [0.5]), ("scores", [0, 2]), ("scores", [0, float("nan")]), ("width", None), ("list", {}),
        ("sort", 1), ("focus", -1), ("focus", 1.5), ("focus", True), ("judge-b", "random"), ("share-b", 51),
        ("share-b", "5"), ("min_samples-b", 0), ("min_samples-b", 5.0),
        ("search", 5), ("search", "a" * 201), ("names", ["x"]), ("size", 1000),
    ],
)  # fmt: skip
def test_an_invalid_value_becomes_the_default_and_the_others_stay(name: str, value: Any) -> None:
    link = _link({"sort": "trusted", "list": "hand", name: value})
    expected = _DEFAULTS | {"sort": "trusted", "list": "hand"} | {name: _DEFAULTS[name]}
    assert restore(link, _NETWORKS) == expected
