"""A rank that is killed, stopped or out of memory is named in one line, and the others end within the set time."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.fixtures.process_tree import alive
from tests.fixtures.projects import ROOT
from tests.fixtures.training import kill, run, start, wait_until

_TIMEOUT_S = 6
_RANKS = """
import os, resource, sys, time
from pathlib import Path
import torch
from pipeline import distributed
from pipeline.stages.harness import exit_codes

folder, fault, timeout_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
with exit_codes(), distributed.join_process_group(1, timeout_s=timeout_s) as ranks:
    distributed.barrier()
    if fault != "start":
        distributed.set_collective_timeout(timeout_s)
    (folder / f"rank{ranks.rank}").write_text(str(os.getpid()))
    for step in range(4000):
        ends = torch.tensor([float((folder / "end").exists())])
        if float(distributed.all_reduce_sum_(ends)):
            break
        time.sleep(0.05)
        if fault == "memory" and ranks.rank == 1 and step == 20:
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
            torch.empty(64 << 30, dtype=torch.uint8)
"""
_LAUNCH = "import sys; from pipeline.distributed import launch; sys.exit(launch('ranks', sys.argv[1:], 2))"


def _command(folder: Path, fault: str, timeout_s: float = _TIMEOUT_S) -> tuple[list[str], dict[str, str]]:
    (folder / "ranks.py").write_text(_RANKS)
    return [sys.executable, "-c", _LAUNCH, str(folder), fault, str(timeout_s)], {"PYTHONPATH": f"{ROOT}:{folder}"}


def _pid(folder: Path, rank: int) -> int | None:
    file = folder / f"rank{rank}"
    return int(file.read_text() or 0) or None if file.exists() else None


def _errors(lines: list[str]) -> list[str]:
    """Return the lines but those that torch and the C++ libraries log."""
    return [line for line in lines if line and not line.startswith(("[W", "[E", "[rank", "W1", "E1", "W0", "E0"))]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("fault", "number", "victim"),
    [
        ("none", signal.SIGKILL, 1),
        ("none", signal.SIGKILL, 0),
        ("none", signal.SIGSTOP, 1),
        ("none", signal.SIGSTOP, 0),
        ("start", signal.SIGSTOP, 1),
    ],
    ids=["1 killed", "0 killed", "1 stopped", "0 stopped", "1 stopped before the timeout of training is set"],
)
def test_a_lost_rank_is_named_and_the_others_end(
    tmp_path: Path, fault: str, number: signal.Signals, victim: int
) -> None:
    command, environ = _command(tmp_path, fault)
    output = tmp_path / "output"
    process = start(command, environ=environ, output=output)
    try:
        wait_until(lambda: _pid(tmp_path, 0) and _pid(tmp_path, 1), process)
        lost, other = _pid(tmp_path, victim), _pid(tmp_path, 1 - victim)
        assert lost
        assert other
        time.sleep(1)
        os.kill(lost, number)
        began = time.monotonic()
        while alive({other}) and time.monotonic() - began < 3 * _TIMEOUT_S:
            time.sleep(0.05)
        assert not alive({other}), "the other rank does not end"
        if number == signal.SIGKILL:
            assert process.wait(timeout=30) == 128 + signal.SIGKILL
    finally:
        kill(process, *[pid for rank in (0, 1) if (pid := _pid(tmp_path, rank))])
    lines = _errors(output.read_text().splitlines())
    assert not [line for line in lines if "Traceback" in line], lines
    ends = [line for line in lines if line.startswith("error: ")]
    named = f"rank {victim} (process {lost}"
    assert ends, lines
    assert all(named in line for line in ends), lines
    if number == signal.SIGSTOP:
        assert len(ends) == 1, lines
        assert "is stopped" in ends[0]
        notices = [line for line in lines if line not in ends]
        assert len(notices) == 1, lines
        assert named in notices[0]


@pytest.mark.slow
@pytest.mark.distributed
def test_a_rank_without_memory_says_so_in_one_line(tmp_path: Path) -> None:
    command, environ = _command(tmp_path, "memory")
    done = run(command, environ=environ)
    assert done.returncode == 2, done.stderr
    lines = _errors(done.stderr.splitlines())
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: out of memory")


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("is_named", [False, True], ids=["slowed", "stopped for a while"])
def test_a_rank_that_goes_on_costs_time_alone(tmp_path: Path, victim: int, is_named: bool) -> None:
    """It is named after half the timeout of 15 s; the run goes on."""
    command, environ = _command(tmp_path, "none", 15)
    output = tmp_path / "output"
    process = start(command, environ=environ, output=output)
    try:
        wait_until(lambda: _pid(tmp_path, 0) and _pid(tmp_path, 1), process)
        slowed = _pid(tmp_path, victim)
        assert slowed
        time.sleep(1)
        for _ in range(1 if is_named else 8):
            os.kill(slowed, signal.SIGSTOP)
            if is_named:
                wait_until(lambda: f"rank {victim} (process {slowed}" in output.read_text(), process)
            else:
                time.sleep(0.5)
            os.kill(slowed, signal.SIGCONT)
            time.sleep(0.1)
        (tmp_path / "end").touch()
        assert process.wait(timeout=60) == 0, output.read_text()
    finally:
        kill(process, *[pid for rank in (0, 1) if (pid := _pid(tmp_path, rank))])
    lines = _errors(output.read_text().splitlines())
    assert len(lines) == is_named, lines
    # The watching rank says "is stopped" where it sees the process, else that it has not come.
    assert all(f"rank {victim} (process {slowed}" in line for line in lines), lines
