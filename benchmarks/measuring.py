"""What the benchmarks share: seconds, ratios with their spread, and the JSON they print."""

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
    """Wall time of one call, until a GPU has finished it."""
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


class StepClock(RunLog):
    """A silent log that takes the time between the ends of two optimizer steps.

    A GPU is waited for at these two steps, and not between them.

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
    """Median and extremes of ratios that were each taken within one round."""
    found = {"median": np.median(ratios), "min": np.min(ratios), "max": np.max(ratios)}
    return {f"ratio_{name}": round(float(value), 3) for name, value in found.items()}


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that no file backs, so without mapped pages; 0 when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")]
    return 1024 * int(found[0]) if found else 0


def print_results(arguments: argparse.Namespace, rows: Sequence[Row]) -> None:
    """A table, and one line of JSON that also says what was measured, on what."""
    print_table(rows)
    machine = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
    print(json.dumps({**machine, **vars(arguments), "results": rows}))
