"""The state of the page in its URL: plain keys and values."""

from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from viz.callbacks.url import initial_values, read_settings, restore
from viz.color_by import COLORINGS
from viz.filter_settings import SCORER_CHOICES, FilterSettings, Limit
from viz.layout import LISTS, SORTS, VIEWS, WIDTHS
from viz.state import settings_from_json

_NETWORKS = ["resnet18", "resnet34"]
_DEFAULTS = restore(None, _NETWORKS)
_KEYS = {"coloring": "color", "focus": "image", "scorer-b": "scorer-b"}

_LIMITS = st.builds(Limit, threshold=st.none() | st.floats(1e-9, 1e9), min_samples=st.integers(1, 100))
_SETTINGS = st.builds(
    FilterSettings,
    scorer_choice=st.sampled_from(sorted(SCORER_CHOICES)),
    limit=_LIMITS,
    per_class=st.dictionaries(st.integers(0, 999), _LIMITS, max_size=4),
)
_STATES = st.fixed_dictionaries(
    {
        "view": st.sampled_from(sorted(VIEWS)),
        "network": st.sampled_from(_NETWORKS),
        "coloring": st.sampled_from(sorted(COLORINGS)),
        "classes": st.lists(st.integers(0, 999), min_size=1),
        "scores": st.tuples(st.floats(0, 1), st.floats(0, 1)).map(lambda pair: sorted(pair)),
        "width": st.sampled_from(sorted(WIDTHS)),
        "list": st.sampled_from(sorted(LISTS)),
        "sort": st.sampled_from(sorted(SORTS)),
        "focus": st.integers(0, 10**6),
        "network-b": st.sampled_from(_NETWORKS),
        "scorer-b": st.sampled_from(sorted(SCORER_CHOICES)),
        "share-b": st.floats(0, 100),
        "min_samples-b": st.integers(1, 100),
        "search": st.text(min_size=1, max_size=200).filter(str.isprintable),
        "names": st.just([]),
        "size": st.integers(48, 240),
    }
)


def _text(value: Any) -> str:
    return (",".join(map(str, value)) or "off") if isinstance(value, list) else str(value)


def _link(state: dict[str, Any]) -> str:
    """Return a link as the page writes it; see assets/address.js."""
    return "?" + urlencode({_KEYS.get(name, name): _text(value) for name, value in state.items()})


def _own(label: int, limit: Limit) -> str:
    return f"{label}:{'' if limit.threshold is None else limit.threshold}:{limit.min_samples}"


@given(state=_STATES)
def test_a_link_restores_its_state(state: dict[str, Any]) -> None:
    assert restore(_link(state), _NETWORKS) == state


@given(settings=_SETTINGS)
@example(settings=FilterSettings())
def test_a_link_restores_its_settings(settings: FilterSettings) -> None:
    query = {
        "scorer": settings.scorer_choice,
        "threshold": "" if settings.limit.threshold is None else settings.limit.threshold,
        "min_samples": settings.limit.min_samples,
        "per_class": ",".join(_own(label, limit) for label, limit in settings.per_class.items()),
    }
    assert settings_from_json(read_settings("?" + urlencode(query))) == settings


def test_a_link_has_plain_keys_and_values() -> None:
    address = "?color=class&classes=1,3&scores=0.2,0.8&image=21&search=class:%22polar+bear%22&names=off"
    assert restore(address, _NETWORKS) == _DEFAULTS | {
        "coloring": "class", "classes": [1, 3], "scores": [0.2, 0.8], "focus": 21, "search": 'class:"polar bear"',
        "names": [],
    }  # fmt: skip
    settings = settings_from_json(read_settings("?scorer=dbscan&threshold=0.75&per_class=3:0.5:7,4::9"))
    limits = {3: Limit(threshold=0.5, min_samples=7), 4: Limit(min_samples=9)}
    expected = FilterSettings(scorer_choice="dbscan", limit=Limit(threshold=0.75), per_class=limits)
    assert settings == expected
    assert settings_from_json(read_settings(None)) == FilterSettings()
    # A number is a text where a text belongs.
    assert restore("?network=18", ["resnet18", "18"])["network"] == "18"
    assert restore("?search=18", _NETWORKS)["search"] == "18"


def test_without_a_link_the_first_and_last_network_are_compared() -> None:
    assert initial_values(_NETWORKS) == _DEFAULTS
    assert (_DEFAULTS["network"], _DEFAULTS["network-b"]) == ("resnet18", "resnet34")
    assert (_DEFAULTS["view"], _DEFAULTS["list"], _DEFAULTS["focus"]) == ("explore", "dropped", None)


_ANY_QUERY = st.dictionaries(st.sampled_from(sorted(_DEFAULTS)), st.text())


@given(search=st.text() | _ANY_QUERY.map(_link))
@example(search="?image=" + "[" * 100_000)
@example(search="?image=" + "1" * 10_000)
@example(search="?per_class=" + ":" * 10_000)
@example(search="?scores=nan,nan")
def test_a_damaged_link_gives_valid_values(search: str) -> None:
    values = restore(search, _NETWORKS)
    assert values.keys() == _DEFAULTS.keys()
    # Restored values are in the range of the control, or are the default.
    changed = {name: value for name, value in values.items() if value != _DEFAULTS[name]}
    assert restore(_link(changed), _NETWORKS) == values
    assert isinstance(read_settings(search), dict)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("view", "nowhere"), ("network", "../../etc"), ("coloring", "class "), ("classes", "a"), ("classes", "1,,2"),
        ("scores", "0.5"), ("scores", "0,2"), ("scores", "0,nan"), ("width", "null"), ("list", "{}"),
        ("sort", "1"), ("focus", "-1"), ("focus", "1.5"), ("focus", "true"), ("scorer-b", "random"), ("share-b", "101"),
        ("share-b", "1_0"), ("min_samples-b", "0"), ("min_samples-b", "5.0"),
        ("search", "a" * 201), ("names", "x"), ("size", "1000"),
    ],
)  # fmt: skip
def test_an_invalid_value_becomes_the_default_and_the_others_stay(name: str, text: str) -> None:
    link = _link({"sort": "least_suspect", "list": "hand", name: text})
    expected = _DEFAULTS | {"sort": "least_suspect", "list": "hand"} | {name: _DEFAULTS[name]}
    assert restore(link, _NETWORKS) == expected
