"""Steps of milliseconds for `run_steps`, and a command that runs them: `gpu_day_toys.py FOLDER MINUTES STEP ...`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu_day.running import GpuDayStep, run_steps

Cases = Mapping[str, Callable[[], dict[str, Any]]]

LIMIT_S = 20.0
"""Limit of the step `sleeps` in seconds, with the start of its process; the other steps end earlier."""


def machine(*, dry_run: bool) -> dict[str, Any]:
    if asking := os.environ.get("TOY_ASKING"):
        Path(asking).touch()
        time.sleep(600)  # until it is killed
    return {"device": os.environ.get("TOY_DEVICE", "toy"), "dry_run": dry_run}


def sound(*, dry_run: bool, value: int = 1) -> Cases:
    return {"first": lambda: {"value": value}, "second": lambda: {"value": 2 * value, "finite": True}}


def one_case_raises(*, dry_run: bool) -> Cases:
    return {"bad": lambda: {"value": 1 // 0}, "good": lambda: {"value": 1}}


def raises(*, dry_run: bool) -> Cases:
    raise RuntimeError("no cases today")


def dies(*, dry_run: bool) -> Cases:
    def kill() -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGSEGV)
        return {}

    return {"first": lambda: {"value": 1}, "kill": kill}


def sleeps(*, dry_run: bool) -> Cases:
    """Start a process in the second case, and sleep longer than any limit."""

    def sleep() -> dict[str, Any]:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print("started", child.pid, flush=True)
        time.sleep(600)
        return {}

    return {"first": lambda: {"at": time.time_ns()}, "sleep": sleep}


def steps(names: list[str]) -> list[GpuDayStep]:
    """Return the steps with the names of functions of this module; `waits` is `sleeps` with a very long limit."""
    work = {"waits": "sleeps"}
    return [
        GpuDayStep(
            name=name,
            limit_s=LIMIT_S if name == "sleeps" else 600,
            work=f"gpu_day_toys:{work.get(name, name)}",
            about=f"the toy {name}",
            options={"value": 4} if name == "sound" else {},
        )
        for name in names
    ]


if __name__ == "__main__":
    folder, minutes, *names = sys.argv[1:]
    run_steps(
        steps(names), Path(folder), machine="gpu_day_toys:machine", dry_run=True,
        minutes=float(minutes) if minutes else None, command="toys",
    )  # fmt: skip
