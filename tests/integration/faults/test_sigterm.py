"""A stage that gets SIGTERM ends in one line, leaves no temporary file, and the next `dvc repro` goes on."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.fixtures.forked import run_forked
from tests.fixtures.interrupted_study import HOOKS, resumed_steps
from tests.fixtures.tiny_project import STAGES, environment, hashes, write_tiny_project

_TIMEOUT_S = 400
# A file that the stage writes before it has computed all: a checkpoint where there are some.
_EARLY_FILES: Mapping[str, str] = {
    "prepare": "/.train.npy.",
    "finetune": "/.step-",
    "extract": "/.resnet18.npy.",
    "reduce": "/.resnet18.pca.npy.",
    "filter": "/.points.parquet.",
    "train": "/.step-",
    "report": "/.summary.json.",
}
_LAST_FILE = ".provenance.json."
_TRAINING = ("finetune", "train")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * _TIMEOUT_S)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny project after `dvc repro`, with a checkpoint after every second step."""
    project = write_tiny_project(tmp_path_factory.mktemp("undisturbed"), train_size=0.15, steps=(6, 6))
    yaml = YAML()
    params = yaml.load(project / "params.yaml")
    for section in _TRAINING:
        params[section]["checkpoint"] = {"steps": 2}
    yaml.dump(params, project / "params.yaml")
    done = _repro(project)
    assert done.returncode == 0, done.stdout + done.stderr
    return project


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_is_terminated_goes_on(stage: str, undisturbed: Path, tmp_path: Path) -> None:
    """While it computes, and before it records what it has written."""
    project = _without_results(stage, undisturbed, tmp_path / "project")
    for file in (_EARLY_FILES[stage], _LAST_FILE):
        ended = _repro(project, PYTHONPATH=str(HOOKS), FAULT=f"SIGTERM self {file} 1")
        output = ended.stdout + ended.stderr
        assert ended.returncode != 0, output
        assert "Traceback" not in output
        (line,) = [line for line in output.splitlines() if line.startswith("terminated: ")]
        assert line.endswith("; run the same command again to resume")
        assert "exited with 75" in output
        assert not [path for path in project.rglob(".*.tmp") if ".dvc" not in path.parts]
        if stage in _TRAINING:
            # The first signal came while a checkpoint was written, the second after the training.
            assert bool(resumed_steps(output)) == (file == _LAST_FILE), output
    done = _repro(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert resumed_steps(done.stdout + done.stderr) == []
    assert hashes(project) == hashes(undisturbed)


def _without_results(stage: str, undisturbed: Path, project: Path) -> Path:
    """Copy a project without the results of a stage, also those from which DVC or the stage would restore them."""
    shutil.copytree(undisturbed, project, symlinks=True)
    shutil.rmtree(project / "data" / stage)
    shutil.rmtree(project / ".dvc" / "cache")
    # The report shows the plans in it, and takes no result from it.
    if stage != "report":
        shutil.rmtree(project / ".work")
    return project


def _repro(project: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dvc", "repro"]
    return run_forked(command, cwd=project, environ={**environment(), **environ}, timeout=_TIMEOUT_S)
