"""A stage that gets SIGTERM ends in one line without a temporary file, and the next `dvc repro` goes on.

After SIGKILL the next run of the stage removes what is left of its files.
"""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.fixtures.forked import run_forked
from tests.fixtures.interrupted_study import HOOKS, resumed_steps
from tests.fixtures.tiny_project import EARLY_FILES, REPRO, environment, hashes, reproduced, write_short_project

__all__ = ["reproduced"]

_TIMEOUT_S = 400
_LAST_FILE = ".provenance.json."
_TRAINING = ("finetune", "train")


@pytest.mark.slow
@pytest.mark.timeout(4 * _TIMEOUT_S)
def test_every_stage_that_is_terminated_or_killed_goes_on(reproduced: Path, tmp_path: Path) -> None:
    """Each in turn while it computes, and before it records what it has written, in one project.

    Kills of trainings are in test_kills.py.
    """
    project = write_short_project(tmp_path / "project")
    for stage, early_file in EARLY_FILES.items():
        # The first signal comes while a checkpoint is written, the second after the training.
        assert resumed_steps(_terminated(project, stage, early_file)) == []
        assert bool(resumed_steps(_terminated(project, stage, _LAST_FILE))) == (stage in _TRAINING), stage
        if stage not in _TRAINING:
            _kill(project, stage, early_file)
    done = _repro(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert resumed_steps(done.stdout + done.stderr) == []
    assert hashes(project) == hashes(reproduced)
    assert _leftovers(project) == []


def _terminated(project: Path, stage: str, file: str) -> str:
    """Run until a stage gets SIGTERM at the second use of a file, check how it ends, and return what was printed."""
    ended = _repro(project, PYTHONPATH=str(HOOKS), FAULT=f"SIGTERM self {file} 1")
    output = ended.stdout + ended.stderr
    assert ended.returncode != 0, output
    assert "Traceback" not in output
    (line,) = [line for line in output.splitlines() if line.startswith("terminated: ")]
    assert line.endswith("; run the same command again to resume")
    (failed,) = [line for line in output.splitlines() if "exited with 75" in line]
    assert f"python -m pipeline.stages.{stage}" in failed
    assert _leftovers(project) == [], "also of the stage that was killed before"
    return output


def _kill(project: Path, stage: str, file: str) -> None:
    """Run until a stage gets SIGKILL at the second use of a file, of which a part is left."""
    ended = _repro(project, PYTHONPATH=str(HOOKS), FAULT=f"SIGKILL self {file} 1")
    output = ended.stdout + ended.stderr
    assert ended.returncode != 0, output
    (failed,) = [line for line in output.splitlines() if f"exited with {-signal.SIGKILL}" in line]
    assert f"python -m pipeline.stages.{stage}" in failed
    assert [path for path in _leftovers(project) if file in str(path)], _leftovers(project)


def _leftovers(project: Path) -> list[Path]:
    return [path for path in project.rglob(".*.tmp") if ".dvc" not in path.parts]


def _repro(project: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    return run_forked(REPRO, cwd=project, environ={**environment(), **environ}, timeout=_TIMEOUT_S)
