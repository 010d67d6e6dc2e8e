"""`dvc repro` that is stopped in every stage, one after another, ends in the bytes of an undisturbed run."""

import os
import signal
import time
from pathlib import Path

import pytest

from pipeline.processes import processes_in_folder
from tests.fixtures.forked import run_forked, start_forked
from tests.fixtures.tiny_project import (
    EARLY_FILES,
    REPRO,
    STAGES,
    environment,
    hashes,
    reproduced,
    write_short_project,
)
from tests.fixtures.training import kill, wait_until

__all__ = ["reproduced"]

_TIMEOUT_S = 400
# The second checkpoint of the first run.
_FILES = {**EARLY_FILES, "finetune": "/.step-000000004.", "train": "/.step-000000004."}
# A stage waits before it opens a file with HOLD in its path, once, while the file HELD exists.
_HOLD = """
import os, sys, time
from pathlib import Path

def hold(event, args):
    if event == "open" and os.environ["HOLD"] in str(args[0]) and not hasattr(sys, "held"):
        sys.held = Path(os.environ["HELD"])
        sys.held.touch()
        end = time.monotonic() + 60
        while sys.held.exists() and time.monotonic() < end:
            time.sleep(0.01)

sys.addaudithook(hold)
"""


@pytest.mark.slow
@pytest.mark.timeout(4 * _TIMEOUT_S)
def test_dvc_is_stopped_in_every_stage(tmp_path: Path, reproduced: Path) -> None:
    """By SIGINT in every stage; by SIGKILL, too, in the stages that train. test_dvc_kills.py kills in all of them."""
    (tmp_path / "sitecustomize.py").write_text(_HOLD)
    project = write_short_project(tmp_path / "project")
    for stage in STAGES:
        if stage in ("finetune", "train"):
            _stop_in(project, stage, signal.SIGKILL)
        _stop_in(project, stage, signal.SIGINT)
    done = run_forked(REPRO, cwd=project, environ=environment(), timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert hashes(project) == hashes(reproduced)
    assert [path for path in (*project.glob("data/**/*"), *project.glob(".work/**/*")) if ".tmp" in path.name] == []


def _stop_in(project: Path, stage: str, sent: signal.Signals) -> None:
    """Send SIGKILL to DVC alone, as the out-of-memory killer does, or another signal to its group, as Ctrl-C does."""
    held = project.parent / "held"
    environ = {"PYTHONPATH": str(project.parent), "HOLD": _FILES[stage], "HELD": str(held)}
    dvc = start_forked(REPRO, cwd=project, environ={**environment(), **environ})
    try:
        wait_until(held.exists, dvc, timeout=_TIMEOUT_S)
        assert _running_stages(project) == {stage}
        os.kill(dvc.pid, sent) if sent == signal.SIGKILL else os.killpg(dvc.pid, sent)
        if sent == signal.SIGKILL:
            dvc.wait(timeout=60)  # which ends the stage, before it could go on
        held.unlink()
        assert dvc.wait(timeout=60) != 0
    finally:
        kill(dvc)
    deadline = time.monotonic() + 20
    while orphans := _running_stages(project):
        assert time.monotonic() < deadline, orphans
        time.sleep(0.05)


def _running_stages(project: Path) -> set[str]:
    """Return the names of the stages that run in the folder."""
    words = [word for command in processes_in_folder(project).values() for word in command]
    return {word.removeprefix("pipeline.stages.") for word in words if word.startswith("pipeline.stages.")}
