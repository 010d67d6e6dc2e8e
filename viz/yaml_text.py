"""Change single keys in the text of a YAML file and no other byte.

The parser's events give the place of each key and value; only these places change. A round trip of ruamel.yaml writes
the whole text again. Set up for our presets it still changes what headline.yaml means (`20,480` within a flow sequence
becomes `20, 480`, two items) and, in files of other authors, drops comments within flow mappings of several lines,
CRLF line ends and byte order marks, and replaces indents, spacing, `~` and `True`.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.events import (
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

_ANCHOR = re.compile(r"[ \t]*&[^\s,\[\]{}]+[ \t]*")
_SEPARATOR = re.compile(r"\s*:")


@dataclass(frozen=True, kw_only=True)
class _Node:
    """A value from `start` to before `end`, its anchor included; `block`: a collection by indentation."""

    start: int
    end: int
    block: bool = False
    is_mapping: bool = False
    entries: "Mapping[str, _Entry]" = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A key of a mapping: where the key begins, where its colon ends, and the value."""

    start: int
    colon: int
    value: _Node


def with_value(text: str, keys: Sequence[str], value: Any) -> str:
    """`text` with `value` at the path `keys`, whose mappings but for the last must be there.

    A mapping in the place of a mapping changes only the keys that differ. Anchors stay. What only an
    alias or a merge key brings in cannot be changed: callers compare what the new text means.

    Args:
        value: of numbers, strings, booleans, None, and lists and dicts of them.
    """
    root = _root(text)
    node = _find(root, keys)
    if node is not None and node.is_mapping and isinstance(value, Mapping) and value:
        for key, inner in value.items():
            text = with_value(text, [*keys, key], inner)
        for key in node.entries:
            if key not in value:
                text = without(text, [*keys, key])
        return text
    parent = _find(root, keys[:-1])
    if parent is None or not parent.is_mapping or _already_has(text, keys, value):
        return text
    if keys[-1] in parent.entries:
        return _replaced(text, parent.entries[keys[-1]], value)
    return _added(text, parent, _rendered({keys[-1]: value})[1:-1])


def without(text: str, keys: Sequence[str]) -> str:
    """`text` without the key at the path `keys`; comments on lines of their own stay."""
    parent = _find(_root(text), keys[:-1])
    if parent is None or keys[-1] not in parent.entries:
        return text
    entry = parent.entries[keys[-1]]
    if parent.block:
        return text[: _line_start(text, entry.start)] + text[_line_end(text, entry.value.end) + 1 :]
    others = list(parent.entries.values())
    place = others.index(entry)
    if place + 1 < len(others):
        return text[: entry.start] + text[others[place + 1].start :]
    # With the comma before it, unless a comment stands between; a comma at the end is allowed.
    start = others[place - 1].value.end if place else entry.start
    return text[: entry.start if "#" in text[start : entry.start] else start] + text[entry.value.end :]


def _replaced(text: str, entry: _Entry, value: Any) -> str:
    node, written = entry.value, _rendered(value)
    if node.start < node.end and not node.block:
        anchor = _ANCHOR.match(text, node.start)
        return text[: anchor.end() if anchor else node.start] + written + text[node.end :]
    anchor = _ANCHOR.match(text, entry.colon)
    # The comment on the key's line stays, the lines of the old value go.
    at = len(text[: anchor.end()].rstrip()) if anchor else entry.colon
    line_end = _line_end(text, at)
    return f"{text[:at]} {written}{text[at:line_end]}{text[max(line_end, _line_end(text, node.end)) :]}"


def _added(text: str, parent: _Node, written: str) -> str:
    if not parent.entries:
        return f"{text[: parent.end - 1]}{written}{text[parent.end - 1 :]}"
    *_, last = parent.entries.values()
    if not parent.block:
        return f"{text[: last.value.end]}, {written}{text[last.value.end :]}"
    line_end = _line_end(text, last.value.end)
    newline = "\r\n" if "\r\n" in text else "\n"
    indented = " " * (last.start - _line_start(text, last.start)) + written
    if line_end == len(text):
        return text + newline + indented
    return f"{text[: line_end + 1]}{indented}{newline}{text[line_end + 1 :]}"


def _already_has(text: str, keys: Sequence[str], value: Any) -> bool:
    """Whether the value at `keys` is `value` already, however it is written."""
    tree: Any = YAML(typ="safe", pure=True).load(text)
    for key in keys:
        if not isinstance(tree, dict) or key not in tree:
            return False
        tree = tree[key]
    # To Python, True equals 1.
    return bool(tree == value) and isinstance(tree, bool) == isinstance(value, bool)


def _line_start(text: str, place: int) -> int:
    return text.rfind("\n", 0, place) + 1


def _line_end(text: str, place: int) -> int:
    """Of the line's newline, or of the end of the text."""
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _rendered(value: Any) -> str:
    """`value` on one line."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = True
    # ruamel.yaml writes these line breaks of Unicode as they are and reads them as spaces; escaped, they survive.
    yaml.allow_unicode = not re.search("[\x85\u2028\u2029]", _all_text(value))
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.brace_single_entry_mapping_in_flow_sequence = True
    yaml.width = 1 << 30
    written = io.StringIO()
    # Within a list, strings that cannot stand in flow style are quoted.
    yaml.dump([value], written)
    return written.getvalue().strip()[1:-1]


def _all_text(value: Any) -> str:
    """All strings of a value, joined."""
    if isinstance(value, dict):
        return "".join(_all_text(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return "".join(map(_all_text, value))
    return value if isinstance(value, str) else ""


def _root(text: str) -> _Node | None:
    events = YAML(typ="safe", pure=True).parse(text)
    for event in events:
        if isinstance(event, (MappingStartEvent, ScalarEvent, SequenceStartEvent)):
            return _node(text, event, events)
    return None


def _find(node: _Node | None, keys: Sequence[str]) -> _Node | None:
    for key in keys:
        entry = node.entries.get(key) if node else None
        node = entry.value if entry else None
    return node


def _node(text: str, event: Event, events: Iterator[Event]) -> _Node:
    start, end = event.start_mark.index, event.end_mark.index
    if isinstance(event, MappingStartEvent):
        return _mapping(text, event, events)
    if isinstance(event, SequenceStartEvent):
        for item in events:
            if isinstance(item, SequenceEndEvent):
                end = end if not event.flow_style else item.end_mark.index
                break
            end = _node(text, item, events).end
        return _Node(start=start, end=end, block=not event.flow_style)
    # Of a scalar of several lines, the empty lines after it are not its own.
    return _Node(start=start, end=start + len(text[start:end].rstrip()))


def _mapping(text: str, event: MappingStartEvent, events: Iterator[Event]) -> _Node:
    start, end = event.start_mark.index, event.end_mark.index
    entries = {}
    for key_event in events:
        if isinstance(key_event, MappingEndEvent):
            end = key_event.end_mark.index if event.flow_style else end
            break
        key = _node(text, key_event, events)
        separator = _SEPARATOR.match(text, key.end)
        colon = separator.end() if separator else key.end
        value = _node(text, next(events), events)
        if value.start == value.end:
            # The parser sees a value that is not there at the next key.
            value = _Node(start=colon, end=colon)
        end = value.end
        if isinstance(key_event, ScalarEvent):
            entries[key_event.value] = _Entry(start=key.start, colon=colon, value=value)
    return _Node(start=start, end=end, block=not event.flow_style, is_mapping=True, entries=entries)
