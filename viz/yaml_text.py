"""Change single keys in the text of a YAML file and no other byte.

The events of the parser give the position of each key and value, and only these positions change.

A round trip of ruamel.yaml writes the whole text again. Even with options for our presets, it changes the meaning of
headline.yaml: `20,480` within a flow sequence becomes `20, 480`, two items. In files of other authors it drops comments
within flow mappings of several lines, CRLF line ends and byte order marks. It also replaces indents, spacing, `~` and
`True`.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
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
from ruamel.yaml.representer import SafeRepresenter

_ANCHOR = re.compile(r"[ \t]*&[^\s,\[\]{}]+[ \t]*")
_SEPARATOR = re.compile(r"\s*:")


@dataclass(frozen=True, kw_only=True)
class _Node:
    """A value in the text.

    Attributes:
        start: position of its first character, anchor included.
        end: position after its last character.
        block: whether it is a collection in block style.
        is_mapping: whether it is a mapping.
        entries: of the mapping.
    """

    start: int
    end: int
    block: bool = False
    is_mapping: bool = False
    entries: "Mapping[str, _Entry]" = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """An entry of a mapping.

    Attributes:
        start: position of the key.
        colon: position after the colon.
        value: of the key.
    """

    start: int
    colon: int
    value: _Node


def with_value(text: str, keys: Sequence[str], value: Any) -> str:
    """Return `text` with `value` at the path `keys`.

    A mapping that replaces a mapping changes only the keys that differ. Anchors stay. Values of aliases and merge keys
    do not change, so callers must compare the meaning of the new text.

    Args:
        text: of the file.
        keys: path of the value. All mappings on it must exist; the last key may be new.
        value: a number, string, boolean or None, or lists and dicts of them.
    """
    root = _root(text)
    node = _find(root, keys)
    if node is not None and node.is_mapping and isinstance(value, Mapping) and value:
        for key, nested in value.items():
            text = with_value(text, [*keys, key], nested)
        for key in node.entries:
            if key not in value:
                text = without(text, [*keys, key])
        return text
    parent = _find(root, keys[:-1])
    if parent is None or not parent.is_mapping or _already_has(text, keys, value):
        return text
    if keys[-1] in parent.entries:
        return _replace(text, parent.entries[keys[-1]], value)
    return _add(text, parent, _render({keys[-1]: value})[1:-1])


def without(text: str, keys: Sequence[str]) -> str:
    """Return `text` without the key at the path `keys`. Comments on separate lines stay."""
    parent = _find(_root(text), keys[:-1])
    if parent is None or keys[-1] not in parent.entries:
        return text
    entry = parent.entries[keys[-1]]
    if parent.block:
        return text[: _line_start(text, entry.start)] + text[_line_end(text, entry.value.end) + 1 :]
    entries = list(parent.entries.values())
    index = entries.index(entry)
    if index + 1 < len(entries):
        return text[: entry.start] + text[entries[index + 1].start :]
    # Remove the comma before it too, except before a comment: a comma at the end is valid.
    start = entries[index - 1].value.end if index else entry.start
    return text[: entry.start if "#" in text[start : entry.start] else start] + text[entry.value.end :]


def _replace(text: str, entry: _Entry, value: Any) -> str:
    node, new_text = entry.value, _render(value)
    if node.start < node.end and not node.block:
        anchor = _ANCHOR.match(text, node.start)
        return text[: anchor.end() if anchor else node.start] + new_text + text[node.end :]
    anchor = _ANCHOR.match(text, entry.colon)
    # Keep the comment on the line of the key, and remove the lines of the old value.
    at = len(text[: anchor.end()].rstrip()) if anchor else entry.colon
    line_end = _line_end(text, at)
    return f"{text[:at]} {new_text}{text[at:line_end]}{text[max(line_end, _line_end(text, node.end)) :]}"


def _add(text: str, parent: _Node, new_text: str) -> str:
    if not parent.entries:
        return f"{text[: parent.end - 1]}{new_text}{text[parent.end - 1 :]}"
    *_, last = parent.entries.values()
    if not parent.block:
        return f"{text[: last.value.end]}, {new_text}{text[last.value.end :]}"
    line_end = _line_end(text, last.value.end)
    newline = "\r\n" if "\r\n" in text else "\n"
    indented = " " * (last.start - _line_start(text, last.start)) + new_text
    if line_end == len(text):
        return text + newline + indented
    return f"{text[: line_end + 1]}{indented}{newline}{text[line_end + 1 :]}"


def _already_has(text: str, keys: Sequence[str], value: Any) -> bool:
    """Return whether the value at `keys` equals `value`, in any notation."""
    tree = _loaded(text)
    for key in keys:
        if not isinstance(tree, dict) or key not in tree:
            return False
        tree = tree[key]
    # True equals 1 in Python.
    return bool(tree == value) and isinstance(tree, bool) == isinstance(value, bool)


@lru_cache(maxsize=2)
def _loaded(text: str) -> Any:
    """Return the keys and values of a text; callers must not change them."""
    return YAML(typ="safe", pure=True).load(text)


def _line_start(text: str, position: int) -> int:
    return text.rfind("\n", 0, position) + 1


def _line_end(text: str, position: int) -> int:
    """Return the position of the newline that ends the line, or the length of the text."""
    end = text.find("\n", position)
    return len(text) if end < 0 else end


class _Representer(SafeRepresenter):
    """Quotes strings that begin with a colon or question mark: in flow style ruamel.yaml does not read them back."""

    def represent_str(self, data: str) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="'" if data[:1] in (":", "?") else None)

    yaml_representers = {**SafeRepresenter.yaml_representers, str: represent_str}  # noqa: RUF012 - as in its base class


def _render(value: Any) -> str:
    """Return `value` as YAML on one line."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = True
    # ruamel.yaml writes these Unicode line breaks unescaped and reads them as spaces. Escapes keep them.
    yaml.allow_unicode = not re.search("[\x85\u2028\u2029]", _all_text(value))
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.brace_single_entry_mapping_in_flow_sequence = True
    yaml.width = 1 << 30
    stream = io.StringIO()
    # In a list, ruamel.yaml quotes strings that are invalid in flow style.
    yaml.dump([value], stream)
    return stream.getvalue().strip()[1:-1]


def _all_text(value: Any) -> str:
    """Return all strings of a value, joined."""
    if isinstance(value, dict):
        return "".join(_all_text(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return "".join(map(_all_text, value))
    return value if isinstance(value, str) else ""


@lru_cache(maxsize=2)
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
    # The events of a scalar of several lines include the empty lines after it.
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
            # The parser puts an empty value at the next key.
            value = _Node(start=colon, end=colon)
        end = value.end
        if isinstance(key_event, ScalarEvent):
            entries[key_event.value] = _Entry(start=key.start, colon=colon, value=value)
    return _Node(start=start, end=end, block=not event.flow_style, is_mapping=True, entries=entries)
