"""Run a function in a new process, so that the peak memory is that of the function alone."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from pipeline.processes import peak_memory_kib


def in_own_process(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return `work(*arguments)` and its peak memory in MiB, Python's included; `work` must be a module's function."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_measured, work, arguments).result()


def _measured(work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, float]:
    result = work(*arguments)
    return result, peak_memory_kib() / 1024
