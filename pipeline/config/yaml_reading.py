"""Read YAML that anyone may have written: bounded work, plain values, and one line for each error."""

import copy
import stat
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode
from ruamel.yaml.parser import Parser

from pipeline.errors import InputError

# The largest preset has 12 kB, 7 levels and 900 values.
MAX_BYTES = 1_000_000
MAX_DEPTH = 50
MAX_VALUES = 20_000
"""Keys, values and lists of a file. A value counts again for each alias that repeats it."""

_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(_TAG + name for name in ("null", "bool", "int", "float", "str", "timestamp", "seq", "map"))
_KEY_TAGS = frozenset(_TAG + name for name in ("str", "merge"))


def read_yaml_text(path: Path) -> str:
    """Return the text of a YAML file, with its line endings.

    Raises:
        InputError: the file is missing, not a regular file, larger than `MAX_BYTES`, cannot be read or is not UTF-8.
    """
    try:
        # A FIFO would block, and a device may have no end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path}: not a regular file; give a UTF-8 text file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(f"{path}: larger than {MAX_BYTES:,} bytes; give a smaller file")
        return content.decode("utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; run in a project's folder or make one by `batchsieve init`") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); it must be a UTF-8 text file") from None


def parse_yaml(text: str, *, source: str) -> Any:
    """Return the keys and values of a YAML 1.2 document; errors name `source`.

    Returns:
        Dicts with string keys, lists, strings, numbers, booleans, dates and None; None for an empty text.

    Raises:
        InputError: the text is not YAML, has another kind of value, a key that is not a string or occurs twice, or is
            longer, deeper or has more values than the limits of this module.
    """
    try:
        # A copy, since the caller may change it.
        return copy.deepcopy(_plain_values(text))
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    except Exception as error:  # noqa: BLE001 - not only YAMLError: the scanner also passes on errors of int() and chr()
        raise InputError(f"{source}: not valid YAML at {_line_of(error, text)}: {_problem_of(error)}") from None


# Commands read the same text several times, and a preset takes a twentieth of a second.
@lru_cache(maxsize=8)
def _plain_values(text: str) -> Any:
    # YAML 1.2: `1e-3` is a number, `no` is a string, and a repeated key is an error.
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = _PlainConstructor
    reader.Parser = partial(_BoundedParser, limits=_Limits(text, MAX_VALUES))
    return reader.load(text)


def check_limits(text: str, *, source: str, max_values: int = MAX_VALUES) -> None:
    """Check that a YAML 1.2 document is small enough to build; errors name `source`.

    Raises:
        InputError: the text is longer, deeper or has more values than the limits.
        YAMLError: the text is not YAML; or another error of the scanner.
    """
    try:
        limits = _Limits(text, max_values)
        for event in YAML(typ="safe", pure=True).parse(text):
            limits.check(event)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


class _PlainConstructor(SafeConstructor):
    """Builds plain values alone, and names the line of each that cannot be built."""

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        if node.tag not in _PLAIN_TAGS:
            raise ConstructorError(
                problem=f"{str(node.tag).removeprefix(_TAG)} is not a plain value", problem_mark=node.start_mark
            )
        for key, _ in node.value if isinstance(node, MappingNode) else ():
            if key.tag not in _KEY_TAGS or not isinstance(key, ScalarNode):
                name = f"key {str(key.value)[:40]}" if isinstance(key, ScalarNode) else "a list or mapping as key"
                raise ConstructorError(
                    problem=f"{name} is not text; quote it or remove it", problem_mark=key.start_mark
                )
        if not isinstance(node, ScalarNode):
            return super().construct_object(node, deep)
        try:
            node.value.encode()
            value = super().construct_object(node, deep)
            if isinstance(value, int):
                str(value)  # refuses thousands of hexadecimal digits
            return value
        except (ValueError, KeyError, TypeError, OverflowError):
            shown = ascii(node.value[:40])
            kind = node.tag.removeprefix(_TAG)
            raise ConstructorError(problem=f"{shown} is not a valid {kind}", problem_mark=node.start_mark) from None


@dataclass(kw_only=True)
class _Open:
    """A list or mapping whose end has not been read.

    Attributes:
        values_before: number of values of the file before it.
        height: levels below it, so far.
    """

    anchor: str | None
    values_before: int
    height: int = 0


class _Limits:
    """Counts the events of a document, and raises an `InputError` with the line at the first beyond the limits.

    A parser makes events one by one. What builds a tree from them recurses once per level.
    """

    def __init__(self, text: str, max_values: int) -> None:
        if len(text) > MAX_BYTES:
            raise InputError(f"longer than {MAX_BYTES:,} characters; shorten it")
        self._max_values = max_values
        self._values = 0
        self._opened: list[_Open] = []
        self._anchors: dict[str, tuple[int, int]] = {}

    def check(self, event: Event) -> None:
        """Count the next event of the document."""
        height, opens = 0, False
        match event:
            case ScalarEvent():
                self._values += 1
                if event.anchor:
                    self._anchors[event.anchor] = (1, 0)
            case MappingStartEvent() | SequenceStartEvent():
                opens = True
                self._opened.append(_Open(anchor=event.anchor, values_before=self._values))
                self._values += 1
            case MappingEndEvent() | SequenceEndEvent():
                closed = self._opened.pop()
                height = closed.height
                if closed.anchor:
                    self._anchors[closed.anchor] = (self._values - closed.values_before, height)
            case AliasEvent():
                if any(outer.anchor == event.anchor for outer in self._opened):
                    raise _at(event, f"*{event.anchor[:40]} contains itself; remove this alias")
                # The parser reports an unknown alias.
                repeated, height = self._anchors.get(event.anchor, (1, 0))
                self._values += repeated
            case DocumentStartEvent():
                if event.version not in (None, (1, 2)):
                    raise _at(event, f"follows %YAML {'.'.join(map(str, event.version))}; remove that line")
        if len(self._opened) + height > MAX_DEPTH:
            raise _at(event, f"nested in more than {MAX_DEPTH} levels; give fewer")
        if self._values > self._max_values:
            raise _at(event, f"more than {self._max_values:,} values, with those that aliases repeat; give fewer")
        if self._opened and not opens:
            self._opened[-1].height = max(self._opened[-1].height, height + 1)


def _at(event: Event, problem: str) -> InputError:
    return InputError(f"line {event.start_mark.line + 1}: {problem}")


class _BoundedParser(Parser):
    """Checks the limits before an event becomes a part of the tree."""

    def __init__(self, loader: YAML, *, limits: _Limits) -> None:
        super().__init__(loader)
        self._limits = limits

    def get_event(self) -> Event:
        event: Event = super().get_event()
        self._limits.check(event)
        return event


def _line_of(error: Exception, text: str) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"line {mark.line + 1}"
    position = getattr(error, "position", None)  # of a character that YAML does not allow
    return f"line {text.count(chr(10), 0, position) + 1}" if isinstance(position, int) else "an unknown line"


def _problem_of(error: Exception) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None)
    if problem is None and not isinstance(error, YAMLError):
        problem = str(error)
    return ascii(str(problem or "cannot be parsed"))[1:-1][:200]
