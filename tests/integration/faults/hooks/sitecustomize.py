"""Send a signal, raise an error, wait, or record at file operations; Python imports it from a folder on PYTHONPATH.

FAULT is `<signal> <self or launcher> <part of a path> <n>`. Before the n-th call, counted from 0, that opens, renames
or removes a file whose path has that part, this process or the one that launched the ranks gets the signal.

ERROR is `<exception> <part of a path>`. A call that opens, renames or removes such a file raises the exception.

SLOW is a file. While it exists, a process waits before it renames a checkpoint, SLOW_S seconds.

SAVED is a file. Every checkpoint of a run adds a line to it: folder and name of the checkpoint.

A hook of Python cannot be removed: a forked program that imports this module again turns off those of its parent.
"""

import builtins
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

_EVENTS = ("open", "os.rename", "os.remove")
_ARRIVES_WITHIN_S = 2.0
_STATE = object()


def _add_hook(hook: Callable[[str, tuple[object, ...]], None]) -> None:
    sys.addaudithook(lambda event, args: hook(event, args) if sys.__dict__["_state_of_faults"] is _STATE else None)


def _install(name: str, target: str, part: str, number: str) -> None:
    calls = itertools.count()

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event in _EVENTS and part in str(args[0]) and next(calls) == int(number):
            os.kill(
                int(os.environ["BATCHSIEVE_LAUNCHER"]) if target == "launcher" else os.getpid(), signal.Signals[name]
            )
            time.sleep(_ARRIVES_WITHIN_S if target == "launcher" else 0)

    _add_hook(hook)


def _install_error(name: str, part: str) -> None:
    def hook(event: str, args: tuple[object, ...]) -> None:
        if event in _EVENTS and part in str(args[0]):
            raise getattr(builtins, name)("requested by a test")

    _add_hook(hook)


def _install_wait(marker: Path, seconds: float) -> None:
    def hook(event: str, args: tuple[object, ...]) -> None:
        if event == "os.rename" and "/.step-" in str(args[0]) and marker.exists():
            time.sleep(seconds)

    _add_hook(hook)


def _install_record(record: Path) -> None:
    def hook(event: str, args: tuple[object, ...]) -> None:
        if event == "os.rename" and "/.step-" in str(args[0]):
            saved = Path(str(args[1]))
            with record.open("a", encoding="utf-8") as file:
                file.write(f"{saved.parent.name} {saved.name}\n")

    _add_hook(hook)


sys.__dict__["_state_of_faults"] = _STATE
if "SAVED" in os.environ:
    _install_record(Path(os.environ["SAVED"]))
if "SLOW" in os.environ:
    _install_wait(Path(os.environ["SLOW"]), float(os.environ.get("SLOW_S", "1")))
if "ERROR" in os.environ:
    _install_error(*os.environ["ERROR"].split())
if "FAULT" in os.environ:
    _install(*os.environ["FAULT"].split())
