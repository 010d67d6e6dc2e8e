"""`dvc repro` that is stopped in every stage, one after another, ends in the bytes of an undisturbed run."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from pipeline.processes import processes_in_folder
from tests.fixtures.forked import run_forked, start_forked
from tests.fixtures.tiny_project import STAGES, environment, hashes, write_tiny_project

_TIMEOUT_S = 400
# Seconds between the lock of a stage, which comes before its work, and the kill.
_SECONDS = {"finetune": 1.5, "train": 3.0}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = write_tiny_project(tmp_path_factory.mktemp("undisturbed"))
    done = run_forked(_repro(), cwd=project, environ=environment(), timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return project


@pytest.mark.slow
def test_dvc_is_stopped_in_every_stage(tmp_path: Path, undisturbed: Path) -> None:
    """By SIGINT in every stage; by SIGKILL, too, in the stages that train. test_dvc_kills.py kills in all of them."""
    project = write_tiny_project(tmp_path)
    for stage in STAGES:
        if stage in _SECONDS:
            _stop_in(project, stage, signal.SIGKILL)
        _stop_in(project, stage, signal.SIGINT)
    done = run_forked(_repro(), cwd=project, environ=environment(), timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert hashes(project) == hashes(undisturbed)
    assert [path for path in (*project.glob("data/**/*"), *project.glob(".work/**/*")) if ".tmp" in path.name] == []


def _repro() -> list[str]:
    return [sys.executable, "-m", "dvc", "repro"]


def _stop_in(project: Path, stage: str, sent: signal.Signals) -> None:
    """Send SIGKILL to DVC alone, as the out-of-memory killer does, or another signal to its group, as Ctrl-C does."""
    for lock in project.glob(f".work/locks/{stage}*.lock"):
        lock.unlink()
    dvc = start_forked(_repro(), cwd=project, environ=environment())
    deadline = time.monotonic() + _TIMEOUT_S
    while not list(project.glob(f".work/locks/{stage}*.lock")):
        assert dvc.poll() is None, f"{stage} never started: {dvc.communicate()}"
        assert time.monotonic() < deadline, stage
        time.sleep(0.02)
    time.sleep(_SECONDS.get(stage, 0.1))
    assert dvc.poll() is None, f"{stage} had finished"
    if sent == signal.SIGKILL:
        dvc.kill()
    else:
        os.killpg(dvc.pid, sent)
    dvc.wait(timeout=60)
    deadline = time.monotonic() + 20
    while orphans := [
        " ".join(one) for one in processes_in_folder(project).values() if "pipeline.stages" in " ".join(one)
    ]:
        assert time.monotonic() < deadline, f"orphans of {stage}: {orphans}"
        time.sleep(0.05)
