"""Read JSON files of people who are not trusted: in bounded time, with one meaning, and no special files."""

import json
import math
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.artifacts.files import check_regular
from pipeline.errors import InputError

MAX_TEXT_BYTES = 256_000_000
"""Most bytes of a text in a project."""

MAX_DEPTH = 50
"""Most lists and objects within each other. Python parses about 990, and copies and writes fewer."""

MAX_ARRAY_BYTES = 300_000_000_000
"""Most bytes of an array, and of any file that is read. ImageNet at 224 pixels takes 193 GB."""

_MAX_TABLE_BYTES = 8_000_000_000
_MAX_BYTES = {
    **dict.fromkeys((".json", ".md", ".html", ".csv", ".yaml"), MAX_TEXT_BYTES),
    **dict.fromkeys((".parquet", ".pt", ".svg", ".png", ".pdf"), _MAX_TABLE_BYTES),
    ".npy": MAX_ARRAY_BYTES,
}
"""By the end of the name; verification reads no other files, such as archives of images."""

# Files in them are regular and have no size, and some never end.
_OF_KERNEL = ("/proc", "/sys")


def read_untrusted_json(path: Path, *, max_bytes: int = MAX_TEXT_BYTES, may_be_link: bool = False) -> Any:
    """Read a JSON file in which every parser finds the same values.

    Args:
        max_bytes: most bytes of the file.
        may_be_link: DVC may link an output to its cache.

    Raises:
        InputError: it is missing, not a regular file, too large, not JSON, nested in more than `MAX_DEPTH` levels, has
            a key twice in an object, or a number that is not finite.
    """
    content = _read(path, max_bytes=max_bytes, may_be_link=may_be_link)
    try:
        tree = json.loads(
            content.decode("utf-8"), object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite
        )
    except _AmbiguousError as error:
        raise InputError(f"{path}: {error}; restore the file from a copy") from None
    except RecursionError:
        raise _too_deep(path) from None
    except ValueError:
        raise InputError(f"{path}: not readable as JSON; delete it and run `dvc repro`") from None
    if is_deeper(tree, MAX_DEPTH):
        raise _too_deep(path)
    return tree


def is_deeper(tree: object, levels: int) -> bool:
    """Return whether lists and objects are nested in more than `levels`; counts level by level, without recursion."""
    level = [tree] if isinstance(tree, dict | list) else []
    for _ in range(levels):
        inner = (value for outer in level for value in (outer.values() if isinstance(outer, dict) else outer))
        level = [value for value in inner if isinstance(value, dict | list)]
    return bool(level)


def check_special_files(folders: Sequence[Path]) -> None:
    """Check that folders hold nothing that never ends: pipes, devices, sockets, links into /proc, files above a limit.

    A text has at most 256 MB, a table, network or figure 8 GB, an array 300 GB.

    Raises:
        InputError: naming the first such file.
    """
    seen = set()
    for folder in folders:
        for parent, inner, names in os.walk(folder, followlinks=True):
            status = Path(parent).stat()
            if (status.st_dev, status.st_ino) in seen:
                inner.clear()  # a link to a folder above it
                continue
            seen.add((status.st_dev, status.st_ino))
            _check_target(Path(parent))
            for name in names:
                _check_file(Path(parent, name))


def _check_file(path: Path) -> None:
    try:
        status = path.stat()
    except OSError:
        return  # a link to nothing is missing, which its reader says
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: not a regular file; a project has none, remove it")
    if path.is_symlink():
        _check_target(path)
    limit = _MAX_BYTES.get(path.suffix)
    if limit is not None and status.st_size > limit:
        raise InputError(f"{path}: {status.st_size:,} bytes, more than {limit:,}; remove it")


def _check_target(path: Path) -> None:
    target = Path(os.path.realpath(path))
    if any(target.is_relative_to(folder) for folder in _OF_KERNEL):
        raise InputError(f"{path}: leads to {target}, which is no file of a disk; remove it")


class _AmbiguousError(ValueError):
    """Two parsers may read different values."""


def _too_deep(path: Path) -> InputError:
    return InputError(f"{path}: nested in more than {MAX_DEPTH} levels; restore the file from a copy")


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _AmbiguousError(f"has the key {name[:80]} twice in one object")
        found[name] = value
    return found


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise _AmbiguousError(f"has {text[:80]}, which is no finite number")
    return value


def _read(path: Path, *, max_bytes: int, may_be_link: bool) -> bytes:
    if not may_be_link:
        check_regular(path, max_bytes=max_bytes)
    # The file may have been replaced since, so the open file is checked. O_NONBLOCK does not wait for a pipe's writer.
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if may_be_link else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise InputError(f"{path}: missing ({error.strerror}); copy the whole folder again") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError(f"{path}: not a regular file; remove it, or put the file itself here")
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise InputError(f"{path}: more than {max_bytes:,} bytes; remove it")
    return content
