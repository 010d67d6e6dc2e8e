"""Steps of milliseconds for `run_steps`; run as a module with the arguments FOLDER STEP ..., it runs them."""

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

LIMIT_S = 5.0
"""Limit of the step `sleeps` in seconds, with the fork of its process; the other steps end earlier."""

MODULE = "tests.integration.gpu_day.gpu_day_toys"
MACHINE = f"{MODULE}:machine"


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

    return {"first": lambda: {"value": 1}, "kill": kill, "last": lambda: {"value": 2}}


def hangs(*, dry_run: bool) -> Cases:
    def hang() -> dict[str, Any]:
        time.sleep(600)
        return {}

    return {"hang": hang, "last": lambda: {"value": 2}}


def loses_gpu(*, dry_run: bool) -> Cases:
    """In the first case an error leaves a GPU that computes nothing more, in this process alone."""

    def lose() -> dict[str, Any]:
        sys.modules["torch"] = _LostGpu()  # type: ignore[assignment]
        raise RuntimeError("CUDA error: device-side assert triggered")

    return {"lose": lose, "last": lambda: {"pid_changed": not isinstance(sys.modules.get("torch"), _LostGpu)}}


class _LostGpu:
    """Stands in for torch."""

    @property
    def cuda(self) -> "_LostGpu":
        return self

    def is_initialized(self) -> bool:
        return True

    def empty_cache(self) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")


def continues(*, dry_run: bool, seconds: float) -> Cases:
    return {"sound": lambda: {"value": 1}, "long": lambda: {"continues": True, "seconds_given": seconds}}


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
            work=f"{MODULE}:{work.get(name, name)}",
            about=f"the toy {name}",
            options={"value": 4} if name == "sound" else {},
            case_limit_s=3 if name == "hangs" else 150,
            ends_early_s=10 if name == "continues" else None,
        )
        for name in names
    ]


def main() -> None:
    """Run the steps as the command of the measurement does."""
    folder, *names = sys.argv[1:]
    run_steps(steps(names), Path(folder), machine=MACHINE, dry_run=True, minutes=None, command="toys")


if __name__ == "__main__":
    main()
