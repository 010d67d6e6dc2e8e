"""A signal to a stage that trains several runs at a time reaches all its processes, and ends it with `Terminated`."""

import errno
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import Terminated
from pipeline.stages import concurrent_runs
from pipeline.stages.concurrent_runs import train_in_processes

_SHARES = [["a"], ["b"]]
_WITHIN_S = 60
# Stands for a process that trains: it needs a moment to save, and a signal in it changes nothing.
_CHILD = """
import signal, sys, time
from pathlib import Path

folder, number, code = Path(sys.argv[1]), sys.argv[sys.argv.index("--process") + 1], int(sys.argv[2])
stopped = []
def note(sent, _):
    stopped.append(sent)
    with (folder / f"signals{number}").open("a") as file:
        file.write(f"{sent}\\n")
signal.signal(signal.SIGTERM, note)
signal.signal(signal.SIGINT, note)
(folder / f"ready{number}").touch()
end = time.monotonic() + 60
while not stopped and time.monotonic() < end:
    time.sleep(0.01)
(folder / f"saving{number}").touch()
for _ in range(50):
    time.sleep(0.01)
(folder / f"saved{number}").touch()
sys.exit(code)
"""

pytestmark = pytest.mark.subprocess


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the child's module, where it leaves its files."""
    (tmp_path / "waiting_child.py").write_text(_CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(concurrent_runs, "_MODULE", "waiting_child")
    return tmp_path


def _signals(folder: Path, number: int) -> list[int]:
    return [int(line) for line in (folder / f"signals{number}").read_text().split()]


def _await(folder: Path, name: str) -> None:
    """Wait until both children have left a file."""
    end = time.monotonic() + _WITHIN_S
    while not all((folder / f"{name}{number}").exists() for number in (1, 2)):
        assert time.monotonic() < end, name
        time.sleep(0.01)


def _send_after(folder: Path, *steps: tuple[str, signal.Signals]) -> threading.Thread:
    """Send this process a signal after both children have left a file, for each step in turn."""

    def send() -> None:
        for name, sent in steps:
            _await(folder, name)
            os.kill(os.getpid(), sent)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("code", [os.EX_TEMPFAIL, 0], ids=["saved", "finished"])
def test_both_processes_save_and_the_stage_ends(folder: Path, sent: signal.Signals, code: int) -> None:
    """Also where the signal came so late that every process finished: the stage must not go on to train."""
    before = signal.getsignal(sent)
    thread = _send_after(folder, ("ready", sent))
    with pytest.raises(Terminated, match="the runs are saved"):
        train_in_processes([str(folder), str(code)], _SHARES, [], lambda: None)
    thread.join()
    for number in (1, 2):
        assert (folder / f"saved{number}").exists()
        assert _signals(folder, number) == [signal.SIGTERM]
    assert signal.getsignal(sent) is before


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_while_they_save_is_ignored(folder: Path, second: signal.Signals) -> None:
    thread = _send_after(folder, ("ready", signal.SIGINT), ("saving", second))
    with pytest.raises(Terminated, match="the runs are saved"):
        train_in_processes([str(folder), str(os.EX_TEMPFAIL)], _SHARES, [], lambda: None)
    thread.join()
    for number in (1, 2):
        assert (folder / f"saved{number}").exists()
        assert _signals(folder, number) == [signal.SIGTERM]


def test_a_signal_between_two_starts_keeps_the_rest_from_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen

    def interrupted(*args: Any, **options: Any) -> "subprocess.Popen[bytes]":
        started.append(start(*args, **options))
        os.kill(os.getpid(), signal.SIGTERM)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(Terminated, match="the runs are saved"):
        train_in_processes([str(folder), str(os.EX_TEMPFAIL)], _SHARES, [], lambda: None)
    assert len(started) == 1
    assert started[0].poll() is not None


def test_processes_do_not_get_the_signals_of_a_terminal(folder: Path) -> None:
    """Ctrl-C reaches all processes of the group of the stage: those that import would end in a traceback."""
    groups: list[int] = []

    def note_groups() -> None:
        _await(folder, "ready")
        groups.extend(os.getpgid(int(child)) for child in _children() if b"waiting_child" in _command_line(child))
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=note_groups)
    thread.start()
    with pytest.raises(Terminated):
        train_in_processes([str(folder), str(os.EX_TEMPFAIL)], _SHARES, [], lambda: None)
    thread.join()
    assert len(groups) == 2
    assert os.getpgid(0) not in groups


def test_a_process_that_is_killed_is_named_and_the_other_saves(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def kill_second() -> None:
        _await(folder, "ready")
        for child in _children():
            if b"--process\0002\0" in _command_line(child):
                os.kill(int(child), signal.SIGKILL)

    thread = threading.Thread(target=kill_second)
    thread.start()
    with pytest.raises(SystemExit) as ended:
        train_in_processes([str(folder), str(os.EX_TEMPFAIL)], _SHARES, [], lambda: None)
    thread.join()
    assert ended.value.code == 128 + signal.SIGKILL
    (line,) = capfd.readouterr().err.splitlines()
    assert re.match(r"error: process-2 \(process \d+\) was ended by SIGKILL; .*dmesg", line)
    assert line.endswith("run the same command again, which resumes at the last checkpoint")
    assert (folder / "saved1").exists()


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()


def _command_line(pid: str) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_an_error_of_the_stage_lets_the_processes_save(folder: Path) -> None:
    """They are killed when the stage ends, so it waits for them."""

    def fail_when_they_run() -> None:
        _await(folder, "ready")
        raise OSError(errno.ENOSPC, "full", "train.log")

    with pytest.raises(OSError, match=r"train\.log"):
        train_in_processes([str(folder), str(os.EX_TEMPFAIL)], _SHARES, [], fail_when_they_run)
    assert all((folder / f"saved{number}").exists() for number in (1, 2))
