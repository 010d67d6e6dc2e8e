"""Cache of results by key, computed again after their files are replaced."""

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
    """LRU cache with one result per key. It is thread-safe; threads wait only for the same key.

    `cachetools.LRUCache(getsizeof=)` would replace only the lines of `_evict`: it has no locks per key and no stamps,
    and rejects a value larger than the bound.

    Args:
        max_bytes: of all results together, by `deep_nbytes`. The least recently used are evicted first, the newest
            never.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._making: dict[object, threading.Lock] = {}
        self._results: dict[object, tuple[str, Any, int]] = {}

    def get(self, key: object, stamp: str, make: Callable[[], _T]) -> _T:
        """Return the result of `make` for this stamp. Each key holds one stamp."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                entry = self._results.pop(key, None)
                if entry is not None and entry[0] == stamp:
                    self._results[key] = entry
                    value: _T = entry[1]
                    return value
            try:
                value = make()
            except BaseException:
                with self._lock:
                    # Waiting threads try again themselves.
                    self._making.pop(key, None)
                raise
            with self._lock:
                self._results[key] = stamp, value, deep_nbytes(value)
                self._evict()
            return value

    def _evict(self) -> None:
        total = sum(size for *_, size in self._results.values())
        while total > self._max_bytes and len(self._results) > 1:
            oldest = next(iter(self._results))
            total -= self._results.pop(oldest)[2]
            self._making.pop(oldest, None)


def deep_nbytes(value: Any) -> int:
    """Return the bytes of a value in memory, including the contents of a tuple, list, mapping or dataclass.

    Memory-mapped arrays count as 0: the system frees their memory when needed.
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
    """Return a stamp that changes whenever one of the files is replaced; the stamp of a missing file is "0"."""
    return "-".join(_stamp(file) for file in files)


def read_consistently(files: Sequence[Path], read: Callable[[], _T]) -> tuple[str, _T]:
    """Return the stamp of the files and the result of `read`, never of a mix of old and new files.

    Raises:
        InputError: from `read`, or the files keep being replaced.
    """
    for _ in range(_ATTEMPTS):
        stamp = files_stamp(files)
        try:
            value = read()
        except InputError:
            # Some files may be replaced and others not yet. The error is real only if none changed.
            if files_stamp(files) == stamp:
                raise
        else:
            if files_stamp(files) == stamp:
                return stamp, value
        time.sleep(_RETRY_INTERVAL_S)
    raise InputError(f"{files[0]}: was replaced while it was read; wait until the running stage is done, then reload")


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "0"
    return f"{status.st_ino:x}.{status.st_mtime_ns:x}.{status.st_size:x}"
