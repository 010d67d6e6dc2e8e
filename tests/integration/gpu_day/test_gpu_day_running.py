"""Steps in separate processes: limits, failures, result files, and the processes of a killed call."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_day import running
from benchmarks.gpu_day.running import outcome, read_results, run_steps
from pipeline.errors import InputError
from tests.fixtures.process_tree import alive, descendants
from tests.fixtures.training import kill, start, wait_until
from tests.integration.gpu_day.gpu_day_toys import LIMIT_S, MACHINE, MODULE, steps


@pytest.fixture(autouse=True)
def _starts_with_a_second_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_SHORTEST_S", 1.0)


def _results(folder: Path, *names: str, minutes: float | None = None) -> dict[str, dict[str, Any]]:
    """Run the steps, whose processes are forked from one server for all calls, and return the results by step."""
    run_steps(steps(list(names)), folder, machine=MACHINE, dry_run=True, minutes=minutes, command="toys")
    return read_results(folder, steps(list(names)), dry_run=True)


def _command(folder: Path, *names: str) -> list[str]:
    """Return a call with a server of its own."""
    return [sys.executable, "-m", MODULE, str(folder), *names]


def _values(result: dict[str, Any]) -> dict[str, Any]:
    return {row["case"]: row.get("value", row.get("error")) for row in result["rows"]}


@pytest.mark.slow
@pytest.mark.subprocess
def test_neither_a_failure_nor_a_limit_nor_a_crash_stops_the_rest(tmp_path: Path) -> None:
    names = ("raises", "dies", "hangs", "loses_gpu", "sleeps", "one_case_raises", "sound")
    results = _results(tmp_path, *names)
    assert {name: result["status"] for name, result in results.items()} == {
        "raises": "failed: exit code 1",
        "dies": "finished",
        "hangs": "finished",
        "loses_gpu": "finished",
        "sleeps": f"over its limit of {LIMIT_S:.0f} s",
        "one_case_raises": "finished",
        "sound": "finished",
    }
    assert results["raises"]["log"].splitlines()[-1] == "RuntimeError: no cases today"
    # Each row is written at once, and the other cases run in a new process.
    assert _values(results["dies"]) == {"first": 1, "kill": "killed its process: SIGSEGV", "last": 2}
    assert _values(results["hangs"]) == {"hang": "hung: killed after 3 s", "last": 2}
    lost, last = results["loses_gpu"]["rows"]
    assert lost["error"] == "RuntimeError: CUDA error: device-side assert triggered"
    assert last["pid_changed"]
    assert [row["case"] for row in results["sleeps"]["rows"]] == ["first"]
    assert results["sleeps"]["seconds"] >= LIMIT_S
    assert _values(results["one_case_raises"]) == {
        "bad": "ZeroDivisionError: integer division or modulo by zero",
        "good": 1,
    }
    assert _values(results["sound"]) == {"first": 4, "second": 8}
    (child,) = (int(line.split()[-1]) for line in results["sleeps"]["log"].splitlines() if line.startswith("started "))
    assert not alive({child}), "what a step has started ends with it"


@pytest.mark.subprocess
def test_a_result_records_machine_and_settings(tmp_path: Path) -> None:
    result = _results(tmp_path, "sound")["sound"]
    assert result["machine"] == {"device": "toy", "dry_run": True}
    assert (result["command"], result["options"], result["dry_run"]) == ("toys", {"value": 4}, True)
    assert {path.name for path in tmp_path.iterdir()} == {"sound.json"}


@pytest.mark.subprocess
def test_finished_steps_are_not_run_again(tmp_path: Path) -> None:
    _results(tmp_path, "sound", "raises")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    results = _results(tmp_path, "sound", "raises", "one_case_raises")
    assert results["one_case_raises"]["status"] == "finished"
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.slow
@pytest.mark.subprocess
def test_a_step_that_is_cut_continues_with_its_next_case(tmp_path: Path) -> None:
    """After the minutes nothing is started; the next call measures what has no row."""
    results = _results(tmp_path, "waits", "sound", minutes=0.1)
    assert {name: result["status"] for name, result in results.items()} == {"waits": "unfinished"}
    (first,) = results["waits"]["rows"]
    again = _results(tmp_path, "waits", minutes=0.05)["waits"]
    assert (again["status"], again["rows"]) == ("unfinished", [first])
    assert {path.name for path in tmp_path.iterdir()} == {"waits.json", "waits.rows.jsonl"}


@pytest.mark.subprocess
def test_a_case_that_has_not_ended_is_measured_again(tmp_path: Path) -> None:
    """Its work knows the seconds that it has, and is not started with too few."""
    assert _results(tmp_path, "continues", minutes=0.1) == {}
    result = _results(tmp_path, "continues", minutes=1)["continues"]
    assert result["status"] == "unfinished"
    sound, long = result["rows"]
    assert 0 < long["seconds_given"] <= 50
    again = _results(tmp_path, "continues")["continues"]
    assert again["rows"][0] == sound
    assert again["rows"][1]["seconds_given"] == 590


@pytest.mark.slow
def test_a_killed_call_leaves_no_process_and_resumes(tmp_path: Path) -> None:
    """The next call continues from the rows of the same machine."""
    killed = tmp_path / "killed"
    rows, log = killed / "waits.rows.jsonl", killed / "waits.log"
    call = start(_command(killed, "sound", "waits"))
    try:
        wait_until(lambda: rows.exists() and "first" in rows.read_text(), call)
        wait_until(lambda: "started " in log.read_text(), call)
        family = descendants(call.pid) | {int(log.read_text().split()[-1])}
        call.send_signal(signal.SIGKILL)
        call.wait()
        _wait_until_gone(family)
    finally:
        kill(call)
    (first,) = (json.loads(line) for line in rows.read_text().splitlines()[1:])
    rows.write_text(rows.read_text() + '{"case": "cut sho')
    results = read_results(killed, steps(["sound", "waits"]), dry_run=True)
    assert [*results] == ["sound"]
    # The same cases under a limit.
    rows.rename(killed / "sleeps.rows.jsonl")
    calls = {}
    for device in ("toy", "another"):
        shutil.copytree(killed, tmp_path / device)
        calls[device] = start(_command(tmp_path / device, "sleeps"), environ={"TOY_DEVICE": device})
    for device, call in calls.items():
        assert call.wait(timeout=60) == 0, call.communicate()
        result = read_results(tmp_path / device, steps(["sleeps"]), dry_run=True)["sleeps"]
        assert (result["rows"] == [first]) == (device == "toy")
        assert [row["case"] for row in result["rows"]] == ["first"]


def test_a_call_killed_before_its_first_step_leaves_no_process(tmp_path: Path) -> None:
    """The call is killed while it describes the machine."""
    asking, family = tmp_path / "asking", set[int]()
    call = start(_command(tmp_path, "sound"), environ={"TOY_ASKING": str(asking)})
    try:
        wait_until(asking.exists, call)
        # The resource tracker and the server of multiprocessing, and the process that describes the machine.
        wait_until(lambda: len(descendants(call.pid)) >= 3, call)
        family = descendants(call.pid)
        call.send_signal(signal.SIGKILL)
        call.wait()
        _wait_until_gone(family)
        assert alive(family) == set()
    finally:
        kill(call, *alive(family))


def _wait_until_gone(pids: set[int]) -> None:
    stand_in = start([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        wait_until(lambda: not alive(pids), stand_in, timeout=30)
    finally:
        kill(stand_in)


@pytest.mark.subprocess
def test_results_of_a_dry_run_are_refused_as_real_ones(tmp_path: Path) -> None:
    _results(tmp_path, "sound")
    for content in (None, "{"):
        if content:
            (tmp_path / "sound.json").write_text(content)
        with pytest.raises(InputError) as raised:
            read_results(tmp_path, steps(["sound"]), dry_run=False)
        assert raised.value.key == str(tmp_path / "sound.json")


def test_a_summary_counts_cases_checks_and_ratios() -> None:
    rows: list[dict[str, Any]] = [
        {"case": "a", "finite": True, "ratio": 0.5},
        {"case": "b", "finite": False, "ratio": 2.0},
        {"case": "c", "error": "RuntimeError: x"},
    ]
    assert outcome(rows) == "3 cases, 1 failed; finite: 1 of 2; ratio 0.5 to 2.0, median 1.25"
    assert outcome([]) == "0 cases"
    assert os.linesep not in outcome(rows)
