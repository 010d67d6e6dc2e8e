"""Work in a process of its own, so that its peak memory is that of the work alone."""

import importlib
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Wall seconds without the start of the process and its imports, and peak memory with Python's own."""

    seconds: float
    peak_memory_mb: float


def in_own_process(work: Callable[..., Any], *arguments: Any, imports: Sequence[str] = ()) -> tuple[Any, Cost]:
    """`work(*arguments)`, which must be a module's function, and what it cost.

    Args:
        imports: modules to load before the clock starts.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_measured, work, arguments, imports).result()


def _measured(work: Callable[..., Any], arguments: Sequence[Any], imports: Sequence[str]) -> tuple[Any, Cost]:
    for module in imports:
        importlib.import_module(module)
    start = time.perf_counter()
    result = work(*arguments)
    seconds = time.perf_counter() - start
    return result, Cost(seconds=seconds, peak_memory_mb=_peak_memory_mb())


def _peak_memory_mb() -> float:
    """Of this program: what getrusage tells counts the process that started it, too."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(kib) / 1024
