"""The watch of other ranks names one that is late, and ends a process whose main thread no collective wakes."""

import os
import subprocess
import sys
import time
from typing import Any

import pytest
import torch.distributed as dist

from pipeline.distributed import collectives
from pipeline.distributed.liveness import NOTICE_AFTER_S, SILENT_AFTER_S, RankWatch, is_lost_connection
from tests.fixtures.projects import ROOT

# Rank 1 answers, and has come to no collective; this process, rank 0, has come to one.
_SCRIPT = """
import os, sys, threading, time
import torch.distributed as dist
from pipeline.distributed import collectives, liveness

liveness._GRACE_S = 0.2
store, collectives._arrivals[0] = dist.HashStore(), 1

def answer():
    for count in range(1000):
        store.set("count 1", f"{count} 0")
        time.sleep(0.05)

store.set("process 1", "1 another-host")
threading.Thread(target=answer, daemon=True).start()
watch = liveness.RankWatch(store, rank=0, size=2, timeout_s=1.0)
watch.set_timeout(1.0, ends_absent=sys.argv[1] == "ends")
time.sleep(4)
os._exit(0)  # the end of the interpreter would abort the thread that is inside the store
"""


@pytest.mark.slow
def test_a_rank_that_answers_and_does_not_come_ends_the_process() -> None:
    ends, waits = (
        subprocess.Popen([sys.executable, "-c", _SCRIPT, mode], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for mode in ("ends", "waits")
    )
    try:
        said = {process: process.communicate(timeout=60)[1] for process in (ends, waits)}
    finally:
        for process in (ends, waits):
            process.kill()
    assert waits.returncode == 0, said[waits]
    assert ends.returncode == 2, said[ends]
    last = said[ends].splitlines()[-1]
    assert last.startswith("error: rank 1 (process 1 on another-host) has not reached the others within 1 s"), last


@pytest.mark.parametrize("timeout_s", [300.0, 20.0])
@pytest.mark.parametrize(
    ("counts", "arrivals", "what"), [(False, 1, "answered"), (True, 1, "reached the others"), (False, 0, "answered")]
)
def test_a_late_rank_is_named_once_and_says_what_the_limit_is(
    timeout_s: float, counts: bool, arrivals: int, what: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The clock is an argument; `arrivals` is the number of collectives that rank 1 has reached fewer than this one.

    With none it may be stopped inside a collective that is not counted, such as one of DistributedDataParallel.
    """
    assert (NOTICE_AFTER_S, SILENT_AFTER_S) == (60.0, 60.0), "docs/reliability.md says so"
    watch, store = _watch_of_rank_1(monkeypatch, timeout_s=timeout_s, arrivals=arrivals)
    limit_s = min(timeout_s, SILENT_AFTER_S) if what == "answered" else timeout_s
    named_after_s = min(limit_s / 2, NOTICE_AFTER_S)
    line = (
        f"rank 1 (process 7 on another-host) has not {what} for {named_after_s + 1:.0f} s; the others wait until "
        f"{limit_s:g} s{' (timeout_seconds)' if limit_s == timeout_s else ''}\n"
    )
    said = []
    for number, passed in enumerate((0.0, named_after_s - 1, named_after_s + 1, named_after_s + 5)):
        store.set("count 1", f"{number if counts else 0} 0")
        watch._check_ranks(1000.0 + passed)
        said.append(capsys.readouterr().err)
    assert said == ["", "", line, ""]


def _watch_of_rank_1(monkeypatch: pytest.MonkeyPatch, *, timeout_s: float, arrivals: int) -> tuple[RankWatch, Any]:
    """Return the watch of rank 0 without its thread, and the store; the end of the process is an exception."""
    monkeypatch.setattr(collectives, "_arrivals", [arrivals])
    monkeypatch.setattr(os, "_exit", sys.exit)
    store = dist.HashStore()  # type: ignore[attr-defined]
    watch = RankWatch(store, rank=0, size=2, timeout_s=timeout_s)
    watch.stop()  # ends the thread, not the watch
    watch._stopped.clear()
    store.set("process 1", "7 another-host")
    return watch, store


@pytest.mark.parametrize(("timeout_s", "ends_after_s"), [(300.0, 65.0), (20.0, 25.0)])
def test_a_rank_that_does_not_answer_at_all_is_lost_after_a_minute(
    timeout_s: float, ends_after_s: float, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a machine without power. A rank that answers may take `timeout_seconds` to come."""
    watch, store = _watch_of_rank_1(monkeypatch, timeout_s=timeout_s, arrivals=1)
    for number, passed in enumerate((0.0, ends_after_s - 1, ends_after_s + 1)):
        store.set("count 1", f"{number} 0")
        watch._check_ranks(1000.0 + passed)
    watch._check_ranks(1000.0 + 2 * ends_after_s)
    with pytest.raises(SystemExit, match="2"):
        watch._check_ranks(1000.0 + 2 * ends_after_s + 2)
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: rank 1 (process 7 on another-host) has not answered for {ends_after_s + 1:.0f} s; run the same "
        "command again, which resumes at the last checkpoint"
    )


def test_a_store_that_does_not_answer_is_lost_after_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, _ = _watch_of_rank_1(monkeypatch, timeout_s=300.0, arrivals=1)
    monkeypatch.setattr(time, "monotonic", lambda: watch._store_answered + 64)
    watch._without_store(RuntimeError("no route to host"))
    monkeypatch.setattr(time, "monotonic", lambda: watch._store_answered + 66)
    with pytest.raises(SystemExit, match="2"):
        watch._without_store(RuntimeError("no route to host"))
    assert "does not answer (no route to host)" in capsys.readouterr().err


def test_the_timeout_of_gloo_in_a_backward_pass_is_a_lost_rank() -> None:
    assert is_lost_connection(RuntimeError("Application timeout caused pair closure"))
    assert not is_lost_connection(RuntimeError("shapes do not fit"))
