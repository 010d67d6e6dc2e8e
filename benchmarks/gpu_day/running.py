"""Run steps, each in a separate process with a time limit, and write their results to a folder.

A step names a function as an entry point does (`module:function`). The function returns cases: functions by name that
measure something and return a row. Each row is appended to NAME.rows.jsonl when measured. When the step has ended,
also by a failure, NAME.json has its rows, and the step does not run again. If the command is killed or its time is
over, the next call continues with the cases that have no row.

A case that raises has its error as row. If it kills its process, hangs, or leaves a GPU that answers no more, its row
has the reason, and the other cases run in a new process.

This module does not import torch. A server process imports torch once, and every step is forked from it.
"""

import gc
import json
import math
import multiprocessing
import os
import pkgutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_day.processes import end_with_parent, gpu_answers, start_process
from pipeline.artifacts.files import write_json, write_text
from pipeline.errors import InputError

Row = dict[str, Any]
Cases = Mapping[str, Callable[[], Row]]

_LOG_CHARACTERS = 4000
_MACHINE_LIMIT_S = 300.0
_POLL_INTERVAL_S = 0.1
# A process needs this long to import, and to reach the GPU.
_SHORTEST_S = 30.0
_GPU_LOST_CODE = 75
FINISHED, UNFINISHED = "finished", "unfinished"
"""Status of a step that has ended by itself, and of one that the next call continues."""
CONTINUES = "continues"
"""A case whose row has this key set has not ended: the next call measures it again."""
_OVER = "over"


@dataclass(frozen=True, kw_only=True)
class GpuDayStep:
    """A step of the measurement.

    Attributes:
        limit_s: seconds after which its process is killed, with its child processes.
        work: `module:function`; the function takes `dry_run` and the `options`, and returns cases.
        about: description, one line.
        case_limit_s: seconds after which a case counts as hung; the step continues with the next one.
        ends_early_s: the work ends so long before the limit by itself, and takes the `seconds` that it has; None: it
            knows no limit.
    """

    name: str
    limit_s: float
    work: str
    about: str
    options: Mapping[str, Any] = field(default_factory=dict)
    case_limit_s: float = 150.0
    ends_early_s: float | None = None


def run_steps(
    steps: Sequence[GpuDayStep],
    folder: Path,
    *,
    machine: str,
    dry_run: bool,
    minutes: float | None,
    command: str,
    after_step: Callable[[], object] = lambda: None,
) -> None:
    """Run the steps that have not ended in `folder`, one after another.

    Args:
        machine: `module:function`; the function takes `dry_run` and returns a dictionary of hardware and versions.
        minutes: time for all; the last step is cut and stays unfinished. None takes as long as all need.
        command: the command line, which the results record.
        after_step: called when the result of a step is written.

    Raises:
        InputError: `folder` has results of another kind (dry run or not), a package is missing, or `machine` raised it.
    """
    start = time.monotonic()
    finished = read_results(folder, steps, dry_run=dry_run)
    remaining = [step for step in steps if step.name not in finished or finished[step.name]["status"] == UNFINISHED]
    if not remaining:
        return
    hardware = _describe(machine, dry_run=dry_run)
    for step in remaining:
        left = math.inf if minutes is None else 60 * minutes - (time.monotonic() - start)
        if left < _SHORTEST_S + (step.ends_early_s or 0):
            _print(f"{step.name}: not started, since {max(0, left):.0f} s are left of --minutes {minutes:g}")
            continue
        _print(f"{step.name}: {step.about}")
        started = datetime.now(UTC).isoformat(timespec="seconds")
        result = _run(step, folder, hardware, dry_run=dry_run, limit_s=min(step.limit_s, left))
        about = {"step": step.name, "about": step.about, "options": dict(step.options), "limit_s": step.limit_s}
        call = {"dry_run": dry_run, "machine": hardware, "command": command, "started": started}
        write_json(folder / f"{step.name}.json", {**about, **call, **result})
        _log_file(folder, step).unlink(missing_ok=True)
        if result["status"] != UNFINISHED:
            _rows_file(folder, step).unlink(missing_ok=True)
        _print(f"{step.name}: {result['status']} after {result['seconds']:.0f} s; {outcome(result['rows'])}")
        after_step()


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
    if ratios := [row["ratio"] for row in rows if row.get("ratio") is not None]:
        parts.append(f"ratio {min(ratios)} to {max(ratios)}, median {round(float(np.median(ratios)), 3)}")
    return "; ".join(parts)


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
    end_with_parent()
    try:
        sender.send(pkgutil.resolve_name(machine)(dry_run=dry_run))
    except InputError as error:
        sender.send(error)
    except ImportError as error:
        sender.send(InputError(f"{error}; install the package; docs/guides/gpu-day.md lists all that are required"))


def _run(step: GpuDayStep, folder: Path, machine: Row, *, dry_run: bool, limit_s: float) -> Row:
    """Run a step; return status, seconds, rows and, unless it finished, the end of its output."""
    rows, log = _rows_file(folder, step), _log_file(folder, step)
    kept = [row for row in _kept_rows(rows, machine) if not row.get(CONTINUES)]
    write_text(rows, "".join(json.dumps(line) + "\n" for line in (machine, *kept)))
    log.write_bytes(b"")
    start = time.monotonic()
    options = dict(step.options)
    if step.ends_early_s is not None:
        options["seconds"] = limit_s - step.ends_early_s
    ended: str | None = None
    while ended is None:
        done = {row["case"] for row in _kept_rows(rows, machine)}
        ended = _run_cases(replace(step, options=options), rows, log, done, dry_run=dry_run, end=start + limit_s)
        if ended is None and len(_kept_rows(rows, machine)) <= len(done):
            ended = "failed: no case has ended"  # a new process would do the same
    _begun_file(rows).unlink(missing_ok=True)
    result: Row = {"seconds": round(time.monotonic() - start, 1), "rows": _kept_rows(rows, machine)}
    if ended == FINISHED:
        return {"status": FINISHED, **result}
    if ended == _OVER:
        ended = f"over its limit of {step.limit_s:.0f} s" if limit_s >= step.limit_s else UNFINISHED
    return {"status": ended, **result, "log": log.read_text(errors="replace")[-_LOG_CHARACTERS:]}


def _run_cases(step: GpuDayStep, rows: Path, log: Path, done: set[str], *, dry_run: bool, end: float) -> str | None:
    """Run the cases that are not `done` in one process; return how the step ended, None to continue in a new process.

    Args:
        end: of the step, in seconds of the monotonic clock.
    """
    begun = _begun_file(rows)
    begun.unlink(missing_ok=True)
    process = start_process(_work, step, rows, log, dry_run, done)
    reason = None
    try:
        while process.exitcode is None and time.monotonic() < end and reason is None:
            process.join(_POLL_INTERVAL_S)
            if _age_s(begun) > step.case_limit_s:
                reason = f"hung: killed after {step.case_limit_s:.0f} s"
        code = process.exitcode
    finally:
        # Its child processes are in its group.
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()
        process.join()
    if code == 0:
        return UNFINISHED if any(row.get(CONTINUES) for row in _kept_rows(rows, None)) else FINISHED
    if code == _GPU_LOST_CODE:
        return None
    if code is None and reason is None:
        return _OVER
    if begun.exists():
        error = reason or f"killed its process: {_reason(code or 0)}"
        _append(rows, {"case": begun.read_text(encoding="utf-8"), "error": error})
    elif reason is None:
        return f"failed: {_reason(code or 0)}"
    return None


def _age_s(file: Path) -> float:
    """Return the seconds since a file was written; 0 if there is none."""
    with suppress(OSError):
        return time.time() - file.stat().st_mtime
    return 0.0


def _reason(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _work(step: GpuDayStep, rows: Path, log: Path, dry_run: bool, done: set[str]) -> None:
    """Run in the process of a step: measure each case and append its row."""
    end_with_parent()
    with log.open("ab", buffering=0) as output:
        for descriptor in (sys.stdout.fileno(), sys.stderr.fileno()):
            os.dup2(output.fileno(), descriptor)
    cases: Cases = pkgutil.resolve_name(step.work)(dry_run=dry_run, **step.options)
    begun = _begun_file(rows)
    for name, measure in cases.items():
        if name in done:
            continue
        write_text(begun, name)
        start, failed = time.perf_counter(), False
        try:
            values = measure()
        except Exception as error:  # noqa: BLE001 - the other cases are measured after any error
            values, failed = {"error": f"{type(error).__name__}: {error}"[:_LOG_CHARACTERS]}, True
        _append(rows, {"case": name, **values, "seconds": round(time.perf_counter() - start, 2)})
        begun.unlink()
        # A traceback keeps the tensors of its frames alive, in reference cycles.
        del values
        gc.collect()
        if failed and not gpu_answers():
            os._exit(_GPU_LOST_CODE)


def _append(rows: Path, row: Row) -> None:
    with rows.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _kept_rows(path: Path, machine: Row | None) -> list[Row]:
    """Return the rows in a file if they are of this machine, or of any for None, without an incomplete last one."""
    lines: list[Row] = []
    if path.exists():
        with suppress(ValueError):
            lines.extend(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    if machine is not None and lines and lines[0] != machine:
        _print(f"{path}: is of another machine; its cases are measured again")
        return []
    return lines[1:]


def _rows_file(folder: Path, step: GpuDayStep) -> Path:
    return folder / f"{step.name}.rows.jsonl"


def _begun_file(rows: Path) -> Path:
    """Return the file with the name of the case that is being measured."""
    return rows.with_suffix(".begun")


def _log_file(folder: Path, step: GpuDayStep) -> Path:
    return folder / f"{step.name}.log"


def _print(line: str) -> None:
    print(line, flush=True)
