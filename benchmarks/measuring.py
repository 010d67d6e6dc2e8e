"""Helpers of the benchmarks: timing, spread of ratios, memory, and printed results."""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from benchmarks.printing import Row, print_table
from pipeline.run_log import Progress, RunLog


def seconds_of(work: Callable[[], object]) -> float:
    """Return the wall time (s) of one call; waits until a GPU has finished."""
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


class StepClock(RunLog):
    """A silent log that measures the time between the ends of two optimizer steps.

    Synchronizes with a GPU at these two steps only.

    Args:
        first, last: steps, counted from 1.
    """

    def __init__(self, first: int, last: int) -> None:
        super().__init__(None)
        self._first, self._last = first, last
        self._done = 0
        self._ends: dict[int, float] = {}

    @property
    def seconds(self) -> float:
        return self._ends[self._last] - self._ends[self._first]

    @contextmanager
    def progress(self, description: str, total: int, unit: str) -> Iterator[Progress]:  # noqa: ARG002
        yield self

    def update(self, n: int = 1, note: str = "") -> None:  # noqa: ARG002
        self._done += n
        if self._done in (self._first, self._last):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self._ends[self._done] = time.perf_counter()


def ratio_spread(ratios: Sequence[float]) -> dict[str, float]:
    """Return median and extremes of ratios that were each taken within one round."""
    summary = {"median": np.median(ratios), "min": np.min(ratios), "max": np.max(ratios)}
    return {f"ratio_{name}": round(float(value), 3) for name, value in summary.items()}


def anonymous_bytes(pid: int) -> int:
    """Return the memory (bytes) of a process that no file backs; 0 if the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    kilobytes = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")]
    return 1024 * int(kilobytes[0]) if kilobytes else 0


def print_results(arguments: argparse.Namespace, rows: Sequence[Row]) -> None:
    """Print a table, and one line of JSON with the results, the arguments and the machine."""
    print_table(rows)
    machine = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
    print(json.dumps({**machine, **vars(arguments), "results": rows}))
