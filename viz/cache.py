"""Results by key, made again when the files that they come from have been replaced."""

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from pipeline.errors import InputError

# A stage replaces its files within milliseconds of one another.
_ATTEMPTS, _RETRY_INTERVAL_S = 5, 0.2

_T = TypeVar("_T")


class StampedCache:
    """The last result for each key. Safe to use from several threads, which wait for one another only at one key.

    `cachetools.LRUCache(getsizeof=)` would replace the lines of `_forget` alone: it has no locks of single keys and no
    stamps, and refuses a value larger than the bound.

    Args:
        max_bytes: bytes of all results together, by `deep_nbytes`; those not map_controls for the longest go first, the last one
            made never.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._making: dict[object, threading.Lock] = {}
        self._results: dict[object, tuple[str, Any, int]] = {}

    def get(self, key: object, stamp: str, make: Callable[[], _T]) -> _T:
        """What `make` gave for this stamp; one stamp per key is remembered."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                found = self._results.pop(key, None)
                if found is not None and found[0] == stamp:
                    self._results[key] = found
                    value: _T = found[1]
                    return value
            try:
                value = make()
            except BaseException:
                with self._lock:
                    # Whoever waits for it tries for itself.
                    self._making.pop(key, None)
                raise
            with self._lock:
                self._results[key] = stamp, value, deep_nbytes(value)
                self._forget()
            return value

    def _forget(self) -> None:
        total = sum(size for *_, size in self._results.values())
        while total > self._max_bytes and len(self._results) > 1:
            oldest = next(iter(self._results))
            total -= self._results.pop(oldest)[2]
            self._making.pop(oldest, None)


def deep_nbytes(value: Any) -> int:
    """Bytes in memory of a value and, where it is a tuple, list, mapping or dataclass, of what it holds.

    What is mapped from a file counts as nothing: the system takes its memory back when others need it.
    """
    if isinstance(value, np.memmap):
        return 0
    if isinstance(value, np.ndarray | pa.ChunkedArray):
        return int(value.nbytes)
    parts: list[Any] = []
    if isinstance(value, tuple | list):
        parts = list(value)
    elif isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif is_dataclass(value):
        parts = [getattr(value, part.name) for part in fields(value)]
    return sys.getsizeof(value) + sum(map(deep_nbytes, parts))


def files_stamp(files: Sequence[Path]) -> str:
    """Differs whenever one of the files has been replaced; "0" stands for one that is missing."""
    return "-".join(_stamp(file) for file in files)


def read_consistently(files: Sequence[Path], read: Callable[[], _T]) -> tuple[str, _T]:
    """The stamp of files and what `read` makes of them, never of old ones and new ones at once.

    Raises:
        InputError: `read` says so, or the files are replaced again and again.
    """
    for _ in range(_ATTEMPTS):
        stamp = files_stamp(files)
        try:
            value = read()
        except InputError:
            # Half of them may have been replaced; if all stand still, the complaint does.
            if files_stamp(files) == stamp:
                raise
        else:
            if files_stamp(files) == stamp:
                return stamp, value
        time.sleep(_RETRY_INTERVAL_S)
    raise InputError(f"{files[0]}: is replaced while it is read; a stage is running: look again when it is done")


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "0"
    return f"{status.st_ino:x}.{status.st_mtime_ns:x}.{status.st_size:x}"
