"""What the benchmarks share: seconds, ratios with their spread, and the JSON they print."""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.printing import Row, print_table


def seconds_of(work: Callable[[], object]) -> float:
    """Wall time of one call, until a GPU has finished it."""
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


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
