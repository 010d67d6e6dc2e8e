"""Results by key, made again when the files that they come from have been replaced."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pipeline.errors import InputError

# A stage replaces its files within milliseconds of one another.
_ATTEMPTS, _PAUSE_S = 5, 0.2

_T = TypeVar("_T")


class Remembered:
    """The last result for each key. Safe to use from several threads, which wait for one another only at one key.

    Args:
        at_most: keys; those not asked for the longest go first.
    """

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._lock = threading.Lock()
        self._making: dict[object, threading.Lock] = {}
        self._results: dict[object, tuple[str, Any]] = {}

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
                self._results[key] = stamp, value
                while len(self._results) > self._at_most:
                    oldest = next(iter(self._results))
                    del self._results[oldest]
                    self._making.pop(oldest, None)
            return value


def stamp_of(files: Sequence[Path]) -> str:
    """Differs whenever one of the files has been replaced; "0" stands for one that is missing."""
    return "-".join(_stamp(file) for file in files)


def read_together(files: Sequence[Path], read: Callable[[], _T]) -> tuple[str, _T]:
    """The stamp of files and what `read` makes of them, never of old ones and new ones at once.

    Raises:
        InputError: `read` says so, or the files are replaced again and again.
    """
    for _ in range(_ATTEMPTS):
        stamp = stamp_of(files)
        try:
            value = read()
        except InputError:
            # Half of them may have been replaced; if all stand still, the complaint does.
            if stamp_of(files) == stamp:
                raise
        else:
            if stamp_of(files) == stamp:
                return stamp, value
        time.sleep(_PAUSE_S)
    raise InputError(f"{files[0]}: is replaced while it is read; a stage is running: look again when it is done")


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "0"
    return f"{status.st_ino:x}.{status.st_mtime_ns:x}.{status.st_size:x}"
