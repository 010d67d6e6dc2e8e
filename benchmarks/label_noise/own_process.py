"""Work in a process of its own, so that its peak memory is that of the work alone."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from pipeline.processes import peak_memory_kib


def in_own_process(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """`work(*arguments)`, which must be a module's function, and its peak memory in MiB with Python's own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_measured, work, arguments).result()


def _measured(work: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, float]:
    result = work(*arguments)
    return result, peak_memory_kib() / 1024
