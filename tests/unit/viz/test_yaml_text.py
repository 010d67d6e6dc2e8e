"""Any key of any preset can be changed or removed, and no other line changes."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tests.fixtures.projects import ROOT
from viz.yaml_text import with_value, without

_TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "presets").glob("*.yaml"))}

_PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(st.characters(codec="utf-8"))
)
_VALUES = st.recursive(
    _PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1), inner, max_size=3)
)


def _load(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def _keys(tree: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in tree.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _keys(value, (*above, key))


_PLACES = [(name, keys) for name, text in _TEXTS.items() for keys in _keys(_load(text))]


def _section(tree: Any, keys: tuple[str, ...]) -> Any:
    for key in keys[:-1]:
        tree = tree[key]
    return tree


def _touched(old: str, new: str) -> tuple[int, int]:
    """Return the numbers of lines of both texts that are not in their common start and end."""
    before, after = old.splitlines(), new.splitlines()
    while before and after and before[0] == after[0]:
        before, after = before[1:], after[1:]
    while before and after and before[-1] == after[-1]:
        before, after = before[:-1], after[:-1]
    return len(before), len(after)


@example(place=("audit", ("prepare",)), value={"a": {"a": ":0"}})
@example(place=("audit", ("prepare",)), value={"a": {"a": "?0", "?": ["?", ":", ":\n"]}})
@settings(max_examples=20)
@given(place=st.sampled_from(_PLACES), value=_VALUES)
def test_any_value_anywhere_is_read_back(place: tuple[str, tuple[str, ...]], value: Any) -> None:
    name, keys = place
    new = with_value(_TEXTS[name], keys, value)
    expected = _load(_TEXTS[name])
    old = copy.deepcopy(_section(expected, keys)[keys[-1]])
    _section(expected, keys)[keys[-1]] = value
    assert _load(new) == expected
    if not isinstance(old, dict | list):
        assert max(_touched(_TEXTS[name], new)) <= 1


@pytest.mark.slow
@settings(max_examples=20)
@given(place=st.sampled_from(_PLACES))
def test_any_key_can_be_removed_but_the_last_of_a_block(place: tuple[str, tuple[str, ...]]) -> None:
    name, keys = place
    expected = _load(_TEXTS[name])
    section = _section(expected, keys)
    value = section.pop(keys[-1])
    new = without(_TEXTS[name], keys)
    if section:
        assert _load(new) == expected
    if not isinstance(value, dict | list):
        assert _touched(_TEXTS[name], new) in ((1, 0), (1, 1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: # why\n  b: 1\nc: 2\n", "a: 5 # why\nc: 2\n"),
        ("a:\n- 1\n- 2 # two\n# next\nc: 2\n", "a: 5\n# next\nc: 2\n"),
        ("a: |\n  text\n\nc: 2\n", "a: 5\n\nc: 2\n"),
        ("a:  # none\nc: 2\n", "a: 5  # none\nc: 2\n"),
        ("a: &a\n  b: 1\nc: 2\n", "a: &a 5\nc: 2\n"),
        ("? a\n: 1\n", "? a\n: 5\n"),
        ("'a' : 1 # x\n", "'a' : 5 # x\n"),
        ("{}", "{a: 5}"),
        ("{c: 2 }", "{c: 2, a: 5 }"),
    ],
)
def test_every_form_of_value_can_be_replaced_by_a_number(text: str, expected: str) -> None:
    assert with_value(text, ["a"], 5) == expected


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("{a: 1, b: 2, c: 3}", "a", "{b: 2, c: 3}"),
        ("{a: 1, b: 2, c: 3}", "b", "{a: 1, c: 3}"),
        ("{a: 1, b: 2, c: 3}", "c", "{a: 1, b: 2}"),
        ("{a: 1}", "a", "{}"),
        ("{a: 1, # one\n b: 2, # two\n c: 3}", "b", "{a: 1, # one\n c: 3}"),
        ("{a: 1, # one\n b: 2 # two\n}", "b", "{a: 1, # one\n  # two\n}"),
        ("# a\na: 1 # one\n# b\nb:\n  - 2\n  # of b\n", "b", "# a\na: 1 # one\n# b\n  # of b\n"),
        ("a: 1\n", "b", "a: 1\n"),
        ("[1]", "b", "[1]"),
    ],
)
def test_text_next_to_a_removed_key_stays(text: str, key: str, expected: str) -> None:
    assert without(text, [key]) == expected
