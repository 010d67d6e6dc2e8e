"""Run steps, each in a separate process with a time limit, and write their results to a folder.

A step names a function as an entry point does (`module:function`). The function returns cases: functions by name that
measure something and return a row. Each row is appended to NAME.rows.jsonl when measured. When the step has ended,
also by a failure, NAME.json has its rows, and the step does not run again. A case that raises has its error as row. If
the command is killed, the rows of the current step are kept.

This module does not import torch. A server process imports torch once, and every step is forked from it.
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
    """A step of the measurement.

    Attributes:
        limit_s: seconds after which its process is killed, with its child processes.
        work: `module:function`; the function takes `dry_run` and the `options`, and returns cases.
        about: description, one line.
    """

    name: str
    limit_s: float
    work: str
    about: str
    options: Mapping[str, Any] = field(default_factory=dict)


def run_steps(
    steps: Sequence[GpuDayStep], folder: Path, *, machine: str, dry_run: bool, minutes: float | None, command: str
) -> None:
    """Run the steps that have no result in `folder`, one after another.

    Args:
        machine: `module:function`; the function takes `dry_run` and returns a dictionary of hardware and versions.
        minutes: start no step whose limit would end later than this; None starts all.
        command: the command line, which the results record.

    Raises:
        InputError: `folder` has results of another kind (dry run or not), a package is missing, or `machine` raised it.
    """
    start = time.monotonic()
    finished = read_results(folder, steps, dry_run=dry_run)
    remaining = [step for step in steps if step.name not in finished]
    if not remaining:
        return
    hardware = _describe(machine, dry_run=dry_run)
    for step in remaining:
        if minutes is not None and time.monotonic() - start + step.limit_s > 60 * minutes:
            _print(
                f"{step.name}: not started, since its limit of {step.limit_s:.0f} s is later than --minutes {minutes:g}"
            )
            continue
        _print(f"{step.name}: {step.about}")
        started = datetime.now(UTC).isoformat(timespec="seconds")
        result = _run(step, folder, hardware, dry_run=dry_run)
        about = {"step": step.name, "about": step.about, "options": dict(step.options), "limit_s": step.limit_s}
        call = {"dry_run": dry_run, "machine": hardware, "command": command, "started": started}
        write_json(folder / f"{step.name}.json", {**about, **call, **result})
        for temporary in (_rows_file(folder, step), _log_file(folder, step)):
            temporary.unlink(missing_ok=True)
        _print(f"{step.name}: {result['status']} after {result['seconds']:.0f} s; {outcome(result['rows'])}")


def read_results(folder: Path, steps: Sequence[GpuDayStep], *, dry_run: bool) -> dict[str, Row]:
    """Return the results in `folder`, by step.

    Raises:
        InputError: a file cannot be read, or is of a dry run although this is not one, or the reverse.
    """
    results: dict[str, Row] = {}
    for step in steps:
        path = folder / f"{step.name}.json"
        if not path.exists():
            continue
        try:
            results[step.name] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise InputError(f"{path}: not readable as JSON; delete it to run its step again") from None
        if results[step.name]["dry_run"] != dry_run:
            kind = "not of a dry run" if dry_run else "of a dry run"
            raise InputError(f"{path}: {kind}; give another --out, or delete it")
    return results


def passed(row: Row) -> bool:
    """Return whether the case ended without an error and all of its checks are true."""
    return "error" not in row and all(value is not False for value in row.values())


def outcome(rows: Sequence[Row]) -> str:
    """Return one line: the number of cases, how many checks hold, and the range of the ratios."""
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
    """Run a function in a new process, forked from a server.

    Args:
        imported: the module that the server imports when it starts; by default the function's module.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([imported or function.__module__])
    process = context.Process(target=function, args=arguments)
    process.start()
    return process


def _describe(machine: str, *, dry_run: bool) -> Row:
    """Call `machine` in a new process, so that this one does not use the GPU."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = start_process(_send_machine, machine, dry_run, sender, imported=machine.partition(":")[0])
    sender.close()
    try:
        if not receiver.poll(_MACHINE_LIMIT_S):
            raise InputError(
                f"gpu_day: the GPU did not answer within {_MACHINE_LIMIT_S:.0f} s; check which process uses it"
            )
        answer = receiver.recv()
    finally:
        process.kill()
        process.join()
    if isinstance(answer, Exception):
        raise answer
    hardware: Row = answer
    return hardware


def _send_machine(machine: str, dry_run: bool, sender: Connection) -> None:
    _end_with_parent()
    try:
        sender.send(pkgutil.resolve_name(machine)(dry_run=dry_run))
    except InputError as error:
        sender.send(error)
    except ImportError as error:
        sender.send(InputError(f"{error}; install the package; docs/guides/gpu-day.md lists all that are required"))


def _run(step: GpuDayStep, folder: Path, machine: Row, *, dry_run: bool) -> Row:
    """Run a step; return status, seconds, rows and, unless it finished, the end of its output."""
    rows, log = _rows_file(folder, step), _log_file(folder, step)
    kept = _kept_rows(rows, machine)
    write_text(rows, "".join(json.dumps(line) + "\n" for line in (machine, *kept)))
    log.write_bytes(b"")
    start = time.monotonic()
    process = start_process(_work, step, rows, log, dry_run, {row["case"] for row in kept})
    try:
        process.join(step.limit_s)
        code = process.exitcode
    finally:
        # Its child processes are in its group.
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()
        process.join()
    result: Row = {"seconds": round(time.monotonic() - start, 1), "rows": _kept_rows(rows, machine)}
    if code == 0:
        return {"status": _FINISHED, **result}
    status = f"over its limit of {step.limit_s:.0f} s" if code is None else f"failed: {_reason(code)}"
    return {"status": status, **result, "log": log.read_text(errors="replace")[-_LOG_CHARACTERS:]}


def _reason(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _work(step: GpuDayStep, rows: Path, log: Path, dry_run: bool, done: set[str]) -> None:
    """Run in the process of a step: measure each case and append its row."""
    _end_with_parent()
    with log.open("ab", buffering=0) as output:
        for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
            os.dup2(output.fileno(), descriptor)
    cases: Cases = pkgutil.resolve_name(step.work)(dry_run=dry_run, **step.options)
    for name, measure in cases.items():
        if name in done:
            continue
        start = time.perf_counter()
        try:
            values = measure()
        except Exception as error:  # noqa: BLE001 - the other cases are measured after any error
            values = {"error": f"{type(error).__name__}: {error}"}
        row = {"case": name, **values, "seconds": round(time.perf_counter() - start, 2)}
        with rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        # A traceback keeps the tensors of its frames alive, in reference cycles.
        del values
        gc.collect()


def _end_with_parent() -> None:
    """End this process and its children when the parent process is killed."""
    os.setsid()
    threading.Thread(target=_kill_group_after_parent, daemon=True).start()


def _kill_group_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)


def _kept_rows(path: Path, machine: Row) -> list[Row]:
    """Return the rows in a file if they are of this machine, without an incomplete last one."""
    lines: list[Row] = []
    if path.exists():
        with suppress(ValueError):
            lines.extend(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    if lines and lines[0] != machine:
        _print(f"{path}: is of another machine; its cases are measured again")
        return []
    return lines[1:]


def _rows_file(folder: Path, step: GpuDayStep) -> Path:
    return folder / f"{step.name}.rows.jsonl"


def _log_file(folder: Path, step: GpuDayStep) -> Path:
    return folder / f"{step.name}.log"


def _print(line: str) -> None:
    print(line, flush=True)
