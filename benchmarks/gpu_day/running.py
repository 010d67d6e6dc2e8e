"""Steps, each in a process of its own with a limit, and what they leave in a folder.

A step names a function, as an entry point does (`module:function`). It returns cases: by name, functions that measure
something and return a row. Each row is written as soon as it is there, to NAME.rows.jsonl. When the step has ended,
however it ended, NAME.json has its rows, and it is not run again. A case that raises has its error for a row. Of a call
that was killed, the rows of the step it was at are kept.

This module does not import torch. A server process imports it once, and every step is forked from that one.
"""

import gc
import json
import multiprocessing
import os
import pkgutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.artifacts.files import write_json, write_text
from pipeline.errors import InputError

Row = dict[str, Any]
Cases = Mapping[str, Callable[[], Row]]

_LOG_CHARACTERS = 4000
_MACHINE_LIMIT_S = 300.0
_FINISHED = "finished"


@dataclass(frozen=True, kw_only=True)
class GpuDayStep:
    """Something to measure.

    Attributes:
        limit_s: seconds after which its process is killed, with all that it has started.
        work: `module:function`; the function takes `dry_run` and the `options`, and returns cases.
        about: one line for people.
    """

    name: str
    limit_s: float
    work: str
    about: str
    options: Mapping[str, Any] = field(default_factory=dict)


def run_steps(
    steps: Sequence[GpuDayStep], folder: Path, *, machine: str, dry_run: bool, minutes: float | None, command: str
) -> None:
    """Run the steps that have no result in `folder` yet, one after another.

    Args:
        machine: `module:function`, which takes `dry_run` and returns a dictionary of the hardware and the versions.
        minutes: start no step whose limit would end later than this; None: start all.
        command: to be kept with the results.

    Raises:
        InputError: `folder` has results of another kind, a package is missing, or `machine` raised it.
    """
    begun = time.monotonic()
    finished = read_results(folder, steps, dry_run=dry_run)
    waiting = [step for step in steps if step.name not in finished]
    if not waiting:
        return
    here = _describe(machine, dry_run=dry_run)
    for step in waiting:
        if minutes is not None and time.monotonic() - begun + step.limit_s > 60 * minutes:
            _say(
                f"{step.name}: not started, since its limit of {step.limit_s:.0f} s is later than --minutes {minutes:g}"
            )
            continue
        _say(f"{step.name}: {step.about}")
        started = datetime.now(UTC).isoformat(timespec="seconds")
        result = _run(step, folder, here, dry_run=dry_run)
        about = {"step": step.name, "about": step.about, "options": dict(step.options), "limit_s": step.limit_s}
        of_call = {"dry_run": dry_run, "machine": here, "command": command, "started": started}
        write_json(folder / f"{step.name}.json", {**about, **of_call, **result})
        for leftover in (_rows_file(folder, step), _log_file(folder, step)):
            leftover.unlink(missing_ok=True)
        _say(f"{step.name}: {result['status']} after {result['seconds']:.0f} s; {learned(result['rows'])}")


def read_results(folder: Path, steps: Sequence[GpuDayStep], *, dry_run: bool) -> dict[str, Row]:
    """The results that `folder` has, by step.

    Raises:
        InputError: one cannot be read, or is of a dry run where this is none, or the other way round.
    """
    found: dict[str, Row] = {}
    for step in steps:
        path = folder / f"{step.name}.json"
        if not path.exists():
            continue
        try:
            found[step.name] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise InputError(f"{path}: not readable as JSON; delete it, and its step is run again") from None
        if found[step.name]["dry_run"] != dry_run:
            kind = "no dry run" if dry_run else "a dry run"
            raise InputError(f"{path}: of {kind}; give another --out, or delete it")
    return found


def passed(row: Row) -> bool:
    """Whether the case ended, and nothing that it checked is false."""
    return "error" not in row and all(value is not False for value in row.values())


def learned(rows: Sequence[Row]) -> str:
    """One line: how many cases there are, how many checks hold, and which ratios were found."""
    parts = [f"{len(rows)} case{'s' * (len(rows) != 1)}"]
    if failed := sum("error" in row for row in rows):
        parts[0] += f", {failed} failed"
    checks = dict.fromkeys(name for row in rows for name, value in row.items() if isinstance(value, bool))
    for name in checks:
        values = [row[name] for row in rows if name in row]
        parts.append(f"{name}: {sum(values)} of {len(values)}")
    if ratios := [row["ratio"] for row in rows if "ratio" in row]:
        parts.append(f"ratio {min(ratios)} to {max(ratios)}, median {round(float(np.median(ratios)), 3)}")
    return "; ".join(parts)


def start_process(function: Callable[..., None], *arguments: Any, imported: str | None = None) -> ForkServerProcess:
    """Run a function in a process of its own, forked from a server.

    Args:
        imported: the module that the server has imported, if it is not there yet; by default the function's.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([imported or function.__module__])
    process = context.Process(target=function, args=arguments)
    process.start()
    return process


def _describe(machine: str, *, dry_run: bool) -> Row:
    """What `machine` returns, in a process of its own: this one leaves the GPU alone."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = start_process(_send_machine, machine, dry_run, sender, imported=machine.partition(":")[0])
    sender.close()
    try:
        if not receiver.poll(_MACHINE_LIMIT_S):
            raise InputError(f"gpu_day: the GPU did not answer within {_MACHINE_LIMIT_S:.0f} s; see what holds it")
        answer = receiver.recv()
    finally:
        process.kill()
        process.join()
    if isinstance(answer, Exception):
        raise answer
    found: Row = answer
    return found


def _send_machine(machine: str, dry_run: bool, sender: Connection) -> None:
    _end_with_parent()
    try:
        sender.send(pkgutil.resolve_name(machine)(dry_run=dry_run))
    except InputError as error:
        sender.send(error)
    except ImportError as error:
        sender.send(InputError(f"{error}; install the package, docs/guides/gpu-day.md lists those that are needed"))


def _run(step: GpuDayStep, folder: Path, machine: Row, *, dry_run: bool) -> Row:
    """Status, seconds, rows and, unless it finished, the end of what it printed."""
    rows, log = _rows_file(folder, step), _log_file(folder, step)
    kept = _kept_rows(rows, machine)
    write_text(rows, "".join(json.dumps(line) + "\n" for line in (machine, *kept)))
    log.write_bytes(b"")
    begun = time.monotonic()
    process = start_process(_work, step, rows, log, dry_run, {row["case"] for row in kept})
    try:
        process.join(step.limit_s)
        code = process.exitcode
    finally:
        # What it has started is in its group, and ends too.
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()
        process.join()
    result: Row = {"seconds": round(time.monotonic() - begun, 1), "rows": _kept_rows(rows, machine)}
    if code == 0:
        return {"status": _FINISHED, **result}
    ended = f"over its limit of {step.limit_s:.0f} s" if code is None else f"failed: {_reason(code)}"
    return {"status": ended, **result, "log": log.read_text(errors="replace")[-_LOG_CHARACTERS:]}


def _reason(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _work(step: GpuDayStep, rows: Path, log: Path, dry_run: bool, done: set[str]) -> None:
    """The process of a step: measure each case and append its row."""
    _end_with_parent()
    with log.open("ab", buffering=0) as output:
        for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
            os.dup2(output.fileno(), descriptor)
    cases: Cases = pkgutil.resolve_name(step.work)(dry_run=dry_run, **step.options)
    for name, measure in cases.items():
        if name in done:
            continue
        begun = time.perf_counter()
        try:
            found = measure()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other cases are measured
            found = {"error": f"{type(error).__name__}: {error}"}
        row = {"case": name, **found, "seconds": round(time.perf_counter() - begun, 2)}
        with rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        # A traceback holds on to the tensors of its frames, which are cycles.
        del found
        gc.collect()


def _end_with_parent() -> None:
    """Have this process end, with all that it starts, when the call that started it is killed."""
    os.setsid()
    threading.Thread(target=_wait_for_the_end_of_the_parent, daemon=True).start()


def _wait_for_the_end_of_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)


def _kept_rows(path: Path, machine: Row) -> list[Row]:
    """The rows in a file, if they are of this machine; without the last one if it was cut short."""
    lines: list[Row] = []
    if path.exists():
        with suppress(ValueError):
            lines.extend(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    if lines and lines[0] != machine:
        _say(f"{path}: of another machine; its cases are measured again")
        return []
    return lines[1:]


def _rows_file(folder: Path, step: GpuDayStep) -> Path:
    return folder / f"{step.name}.rows.jsonl"


def _log_file(folder: Path, step: GpuDayStep) -> Path:
    return folder / f"{step.name}.log"


def _say(line: str) -> None:
    print(line, flush=True)
