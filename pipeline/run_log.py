"""Log files and progress of long runs, and records of wall time, memory and energy."""

import platform
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

from tqdm import tqdm

from pipeline.artifacts.files import write_json
from pipeline.energy import Energy
from pipeline.processes import peak_memory_kib

_LINE_INTERVAL_S = 600.0


class Progress(Protocol):
    """Progress towards a known total."""

    def update(self, n: int = 1, note: str = "") -> None: ...


class RunLog:
    """Messages and progress of one stage or command, on the terminal and in a log file.

    Ranks other than 0 use a silent log (`RunLog.silent()`).

    Args:
        path: log file, to which lines are appended; None writes no file.
        stream: of the terminal; None prints nothing.
        bars: whether progress may be a bar. Bars of several processes on one terminal would overwrite each other.
    """

    def __init__(self, path: Path | None, stream: TextIO | None = None, *, bars: bool = True) -> None:
        self._stream, self._bars = stream, bars
        self._file: TextIO | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", buffering=1)

    @classmethod
    def silent(cls) -> "RunLog":
        """Return a log that discards everything."""
        return cls(None)

    def close(self) -> None:
        """Close the log file; lines that could not be written were reported when they were written."""
        if self._file:
            with suppress(OSError):
                self._file.close()

    def info(self, message: str) -> None:
        """Print a line, and write it to the log file."""
        if self._stream:
            tqdm.write(message, file=self._stream)
        self.write_to_file(message)

    @contextmanager
    def progress(self, description: str, total: int, unit: str) -> Iterator[Progress]:
        """Show a bar on a terminal, otherwise a line every ten minutes; the log file gets one line at the end.

        In a pipe, a run of less than ten minutes thus has the one line that its command prints.
        """
        start = time.monotonic()
        if self._stream is None:
            yield _NoProgress()
        elif self._bars and self._stream.isatty():
            with tqdm(desc=description, total=total, unit=unit, file=self._stream, dynamic_ncols=True) as bar:
                yield _TqdmProgress(bar)
        else:
            yield _LineProgress(self._stream, description, total, unit)
        self.write_to_file(f"{description}: {total} {unit} in {time.monotonic() - start:.1f} s")

    def write_to_file(self, message: str) -> None:
        """Write a line with the time to the log file only."""
        if self._file:
            try:
                self._file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n")
            except OSError as error:
                # The system names no file.
                error.filename = self._file.name
                raise


class _NoProgress:
    def update(self, n: int = 1, note: str = "") -> None:
        pass


class _TqdmProgress:
    def __init__(self, bar: "tqdm[Any]") -> None:
        self._bar = bar

    def update(self, n: int = 1, note: str = "") -> None:
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(n)


class _LineProgress:
    """For logs and pipes: prints the progress and the time left every ten minutes."""

    def __init__(self, stream: TextIO, description: str, total: int, unit: str) -> None:
        self._stream, self._description, self._total, self._unit = stream, description, total, unit
        self._done = 0
        self._start = self._printed_at = time.monotonic()

    def update(self, n: int = 1, note: str = "") -> None:
        self._done += n
        now = time.monotonic()
        if now - self._printed_at < _LINE_INTERVAL_S or not self._done:
            return
        self._printed_at = now
        left = (now - self._start) / self._done * (self._total - self._done)
        line = f"{self._description}: {self._done}/{self._total} {self._unit}, {rounded_time(left)} left"
        print(f"{line}, {note}" if note else line, file=self._stream, flush=True)


def rounded_time(seconds: float) -> str:
    """Return a time in the unit that people use for it: `50 s`, `3 min` or `2.8 h`; seconds below two minutes."""
    if round(seconds) < 120:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def stderr_log(path: Path | None) -> RunLog:
    """Return a log that prints to standard error, so that standard output holds only a command's results."""
    return RunLog(path, sys.stderr)


class ResourceMeter:
    """Record wall time, peak memory and energy of a stage, in a file separate from its results."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def write(
        self,
        path: Path,
        *,
        joules: Energy,
        images: int | None = None,
        earlier_seconds: float = 0.0,
        gpu_bytes: int | None = None,
        arms: Mapping[str, float] | None = None,
        arms_joules: Mapping[str, Energy] | None = None,
    ) -> None:
        """Write the record to `path`, with the version of Python.

        Args:
            joules: energy of all the work that the time covers, including that of interrupted runs.
            images: images processed, for a rate; None writes no rate.
            earlier_seconds: wall time of interrupted runs before this one, for the work that they finished.
            gpu_bytes: peak memory of a GPU; None without one.
            arms: wall time in s of the runs of each arm; for a study.
            arms_joules: energy of the runs of each arm; for a study.
        """
        wall = time.monotonic() - self._start + earlier_seconds
        own = peak_memory_kib()
        # In KiB on Linux; of children the largest one, not their sum.
        children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        record: dict[str, Any] = {"wall_s": round(wall, 2), "peak_memory_mb": round(max(own, children) / 1024, 1)}
        record["joules"] = joules.rounded()
        if images is not None:
            record["images"] = images
            record["images_per_s"] = round(images / wall, 1)
        if gpu_bytes is not None:
            record["peak_gpu_memory_mb"] = round(gpu_bytes / 2**20, 1)
        if arms:
            record["arms_wall_s"] = {arm: round(seconds, 2) for arm, seconds in arms.items()}
        if arms_joules:
            record["arms_joules"] = {arm: energy.rounded() for arm, energy in arms_joules.items()}
        record["python"] = platform.python_version()
        write_json(path, record)
