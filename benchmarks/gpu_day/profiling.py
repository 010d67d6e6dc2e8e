"""The step that profiles: what a GPU does in an optimizer step, and where the process waits for it."""

import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_day import timing
from benchmarks.gpu_day.running import Cases, Row
from benchmarks.loop_speed import random_images
from pipeline import distributed
from pipeline.run_log import Progress, RunLog
from pipeline.training.settings import TrainSettings

# A run of this many steps has no record, link or checkpoint between the steps of both windows.
_STEPS = 400
_TIMED, _PROFILED = (5, 18), (27, 39)
_SHOWN = 8
_NAME_CHARACTERS = 40


def profiling(*, dry_run: bool, size: int, stem: str, precision: str) -> Cases:
    """Return cases that profile ResNet-18's step at several batch sizes and numbers of simulated workers."""
    points = [(4096, 1), (16, 1), (256, 8), (4096, 32)]
    if dry_run:
        size, points, precision = 8, [(8, 2)], "fp32"
    return {
        f"batch {batch}, {workers} workers": partial(
            profile_step,
            timing.settings_of(
                "resnet18", size, batch, stem=stem, precision=precision, simulated_workers=workers, steps=_STEPS
            ),
        )
        for batch, workers in points
    }


def profile_step(settings: TrainSettings) -> Row:
    """Return milliseconds of a step, those that the GPU works, its operations and the most expensive ones.

    `waits` counts calls in a step that wait for the GPU; None without one. `ms_a_step` is not profiled. On a CPU the
    operations are torch's.
    """
    log = _Windows()
    with distributed.join_process_group("auto") as world:
        pixels, labels = random_images(2 * settings.batch_size, settings.format.image_size)
        try:
            timing.train_on(settings, pixels, labels, world=world, log=log)
        except _EndOfWindows:
            return log.row()
    raise RuntimeError("the run ended before its profile")


class _EndOfWindows(Exception):  # noqa: N818 - no error: it ends a run early
    pass


class _Windows(RunLog):
    """A silent log that times some steps, profiles some later ones, and then ends the run."""

    def __init__(self) -> None:
        super().__init__(None)
        self._done = 0
        self._at: dict[int, float] = {}
        self._profile = profile(activities=[ProfilerActivity.CPU, *_gpu([ProfilerActivity.CUDA])])
        self._warnings: list[warnings.WarningMessage] = []
        self._stack = ExitStack()

    @contextmanager
    def progress(self, description: str, total: int, unit: str) -> Iterator[Progress]:  # noqa: ARG002
        with self._stack:
            yield self

    def update(self, n: int = 1, note: str = "") -> None:  # noqa: ARG002
        self._done += n
        first, last = _PROFILED
        if self._done in (*_TIMED, first, last):
            _set_sync_debug_mode("default")
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self._at[self._done] = time.perf_counter()
        if self._done == first:
            self._warnings = self._stack.enter_context(warnings.catch_warnings(record=True, action="always"))
            self._stack.enter_context(self._profile)
            _set_sync_debug_mode("warn")
        if self._done == last:
            raise _EndOfWindows

    def row(self) -> Row:
        """Return the results, after the run."""
        steps = _PROFILED[1] - _PROFILED[0]
        events = [event for event in self._profile.key_averages() if _is_work(event)]
        device_ms = sum(map(_milliseconds, events)) / steps
        ms_a_step = 1000 * (self._at[_TIMED[1]] - self._at[_TIMED[0]]) / (_TIMED[1] - _TIMED[0])
        waits = sum("synchronizing CUDA operation" in str(warning.message) for warning in self._warnings)
        ranked = sorted(events, key=_milliseconds, reverse=True)[:_SHOWN]
        return {
            "ms_a_step": round(ms_a_step, 3),
            "device_ms_a_step": round(device_ms, 3),
            "busy": round(device_ms / ms_a_step, 3),
            "operations_a_step": round(sum(event.count for event in events) / steps),
            "waits_a_step": round(waits / steps, 2) if torch.cuda.is_available() else None,
            "most_expensive": "; ".join(
                f"{event.key[:_NAME_CHARACTERS]} {_milliseconds(event) / steps:.3f} ms" for event in ranked
            ),
        }


def _gpu(values: list[Any]) -> list[Any]:
    return values if torch.cuda.is_available() else []


def _is_work(event: Any) -> bool:
    """Return whether an event of the profiler is a kernel or copy of the GPU or, without one, torch's operation."""
    on_device = DeviceType.CUDA if torch.cuda.is_available() else DeviceType.CPU
    return event.device_type == on_device and not event.is_user_annotation


def _milliseconds(event: Any) -> float:
    microseconds = event.self_device_time_total if torch.cuda.is_available() else event.self_cpu_time_total
    return float(microseconds) / 1000


def _set_sync_debug_mode(mode: str) -> None:
    """Let torch warn of each call that waits for the GPU, or not."""
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode(mode)
