"""A stage that is killed after its last file, before DVC records it, computes nothing again."""

import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.fixtures.forked import run_forked
from tests.fixtures.interrupted_study import HOOKS
from tests.fixtures.tiny_project import environment, hashes, write_tiny_project

_TIMEOUT_S = 400


def _repro(project: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dvc", "repro", "extract"]
    environ = {**environment(), "PYTHONPATH": str(HOOKS), **environ}
    return run_forked(command, cwd=project, environ=environ, timeout=_TIMEOUT_S)


@pytest.mark.slow
def test_a_kill_before_the_record_of_dvc_costs_no_training(tmp_path: Path) -> None:
    """The kill comes at the record of the stage's resources, which is written after all outputs."""
    project = write_tiny_project(tmp_path, train_size=0.15, steps=(6, 6))
    yaml = YAML()
    params = yaml.load(project / "params.yaml")
    params["finetune"]["checkpoint"] = {"steps": 1}
    yaml.dump(params, project / "params.yaml")
    trained = _killed(project, "finetune")
    features = _killed(project, "extract", SAVED=str(tmp_path / "saved"))
    assert not (tmp_path / "saved").exists(), "it trained"
    done = _repro(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "features were extracted before" in (project / ".work/logs/extract@resnet18.log").read_text()
    assert (_made_by("finetune", project), _made_by("extract", project)) == (trained, features)


def _killed(project: Path, stage: str, **environ: str) -> dict[str, str]:
    """Kill a stage after its last file, and return the hashes of its files."""
    killed = _repro(project, FAULT=f"SIGKILL self .{stage}@ 0", **environ)
    assert killed.returncode != 0
    assert f"{stage}@resnet18" in killed.stderr, killed.stderr
    made = _made_by(stage, project)
    assert f"data/{stage}/resnet18.provenance.json" in made
    assert f"{stage}@resnet18:" not in (project / "dvc.lock").read_text(), "DVC has recorded it"
    return made


def _made_by(stage: str, project: Path) -> dict[str, str]:
    return {name: digest for name, digest in hashes(project).items() if name.startswith(f"data/{stage}/")}
