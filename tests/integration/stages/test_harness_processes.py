"""The harness of the stages: locks, signals, and a parent that dies."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from pipeline import locks
from pipeline.config.params import load_params
from pipeline.errors import InputError, Terminated
from pipeline.locks import file_lock
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import RunLog
from pipeline.stages.harness import StageContext, exit_at_sigterm, hold_lock, run_stage
from tests.fixtures.printed_errors import printed_error

_ROOT = Path(__file__).parents[3]


@pytest.fixture
def argv(tmp_path: Path) -> list[str]:
    """Arguments of a stage that works in a separate folder."""
    return [
        *("--params", str(_ROOT / "tests" / "params.yaml")),
        *("--data", str(tmp_path / "data")),
        *("--work", str(tmp_path / "work")),
    ]


def _raise(error: BaseException) -> Callable[[StageContext], None]:
    def body(context: StageContext) -> None:
        raise error

    return body


_WAITING_STAGE = """
import sys, time
from pipeline.stages.harness import run_stage

def body(context):
    print("working", flush=True)
    # A signal just before a long sleep would be seen at its end alone.
    for _ in range(1200):
        time.sleep(0.05)

run_stage("prepare", body, argv=sys.argv[1:])
"""


def _start(argv: list[str], **environment: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", _WAITING_STAGE, *argv],
        cwd=_ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Background jobs of a shell ignore SIGINT, and children inherit this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    return process


def test_a_lock_that_is_removed_keeps_others_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_LOCK_GRACE_S", 0.05)
    lock = tmp_path / "lock"
    with file_lock(lock, "one", remove=True), pytest.raises(InputError), file_lock(lock, "another", remove=True):
        pass
    assert not lock.exists()


def test_a_study_is_not_said_to_run_while_another_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_LOCK_GRACE_S", 0.0)
    first, second = (
        StageContext(
            stage="train", item=study, params=load_params(_ROOT / "tests" / "params.yaml"), log=RunLog.silent(),
            data=DataPaths(root=tmp_path / "data"), work=WorkPaths(root=tmp_path / "work"),
        )
        for study in ("a", "b")
    )  # fmt: skip
    with hold_lock(first), pytest.raises(InputError) as refused, hold_lock(second):
        pass
    said = f"train of any study, or runs import: already running as process {os.getpid()}; wait for it or end it"
    assert str(refused.value) == said


def test_a_lock_file_removed_while_another_waits_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The waiting process has opened the old file, which a third one would no longer find."""
    lock, try_lock, opened = tmp_path / "lock", locks._try_lock, 0

    def remove_first(file: IO[str], *, within_s: float) -> bool:
        nonlocal opened
        opened += 1
        if opened == 1:
            lock.unlink()
        return try_lock(file, within_s=within_s)

    monkeypatch.setattr(locks, "_try_lock", remove_first)
    with file_lock(lock, "one", remove=True):
        assert lock.read_text() == str(os.getpid())
    assert opened == 2


@pytest.mark.slow
def test_a_second_run_is_refused_until_the_first_has_ended(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with _start(argv) as first:
        with pytest.raises(SystemExit) as raised:
            run_stage("prepare", _raise(AssertionError()), argv=argv)
        assert raised.value.code == 2
        error = printed_error(capsys.readouterr().err)
        assert error.key == "prepare"
        assert f" {first.pid};" in str(error)
        first.kill()
    # The killed run could not clean up, and still nobody has to delete a file.
    run_stage("prepare", lambda context: None, argv=argv)


@pytest.mark.slow
def test_interrupt_from_the_keyboard_ends_with_130(argv: list[str]) -> None:
    with _start(argv) as stage:
        stage.send_signal(signal.SIGINT)
        _, error = stage.communicate(timeout=20)
    assert stage.returncode == 130
    assert error == "interrupted; run the same command again to resume\n"


def test_sigterm_ends_with_75_and_one_line(argv: list[str], tmp_path: Path) -> None:
    with _start(argv) as stage:
        stage.send_signal(signal.SIGTERM)
        _, error = stage.communicate(timeout=20)
    assert stage.returncode == 75
    assert error == "terminated: finished files are kept; run the same command again to resume\n"
    assert "Terminated: finished files are kept" in (tmp_path / "work" / "logs" / "prepare.log").read_text()


@pytest.mark.slow
def test_under_dvc_the_stage_dies_with_its_parent(argv: list[str], tmp_path: Path) -> None:
    """A DVC that is killed by SIGKILL leaves no process that writes during the next `dvc repro`."""
    (tmp_path / "stage.py").write_text(_WAITING_STAGE)
    parent_code = (
        "import subprocess, sys; stage = subprocess.Popen([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE);"
        "stage.stdout.readline(); print(stage.pid, flush=True); stage.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent_code, str(tmp_path / "stage.py"), *argv],
        cwd=_ROOT,
        env={**os.environ, "DVC_ROOT": str(_ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        stage = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 20
    while _alive(stage):
        assert time.monotonic() < deadline, f"process {stage} outlived its parent"
        time.sleep(0.05)


def _alive(process: int) -> bool:
    try:
        state = Path("/proc", str(process), "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _clean_up_after_sigterm(cleaned: list[int]) -> None:
    with exit_at_sigterm("kept"):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            for file in range(3):
                os.kill(os.getpid(), signal.SIGTERM)
                cleaned.append(file)


def test_a_second_sigterm_does_not_end_the_cleanup() -> None:
    before, cleaned = signal.getsignal(signal.SIGTERM), list[int]()
    with pytest.raises(Terminated, match="kept"):
        _clean_up_after_sigterm(cleaned)
    assert cleaned == [0, 1, 2]
    assert signal.getsignal(signal.SIGTERM) is before
