"""Read metadata.jsonl: a JSON object on each line, as the library `datasets` reads next to images."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.errors import InputError

_SHOWN = 40  # characters of a value in a message


def read_json_records(content: bytes, *, source: str, required: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield for each object its line, from 1, and the required values as text; blank lines are skipped.

    Whole numbers become their digits, and null becomes the empty text.

    Args:
        content: of the file, UTF-8.
        source: name of the file in messages.
        required: keys that every object has; others are not returned.

    Raises:
        InputError: the file is not UTF-8; or a line is no JSON object, lacks a required key, or has a value for it
            that is neither text nor a whole number.
    """
    for line, record in _objects(content, source):
        where = f"{source}: line {line}"
        missing = [name for name in required if name not in record]
        if missing:
            raise InputError(f"{where}: has no key {missing[0]}; add it")
        yield line, {name: _text(record[name], f"{where}: {name}") for name in required}


def first_keys(content: bytes, *, source: str) -> list[str]:
    """Return the keys of the first object; none of an empty file.

    Raises:
        InputError: the file is not UTF-8, or its first line is no JSON object.
    """
    _, record = next(_objects(content, source), (1, {}))
    return list(record)


def _objects(content: bytes, source: str) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: cannot be read as UTF-8 ({error}); save it as UTF-8") from None
    # Not splitlines, which would also split at characters that JSON allows within text.
    for line, part in enumerate(text.split("\n"), 1):
        if not part.strip():
            continue
        try:
            record = json.loads(part)
        except json.JSONDecodeError as error:
            problem = f"is not JSON ({error.msg} at character {error.colno})"
        except (ValueError, RecursionError):
            problem = "has a number of too many digits, or too many levels"
        else:
            problem = "" if isinstance(record, dict) else "is no JSON object"
        if problem:
            raise InputError(f"{source}: line {line}: {problem}; write one object per line")
        yield line, record


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InputError(f"{where} is {repr(value)[:_SHOWN]}; give text or a whole number")
