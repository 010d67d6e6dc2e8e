"""A study of the full arm needs no stage of the filter, and a change of the filter does not run it again."""

import json
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.fixtures.forked import run_forked
from tests.fixtures.tiny_project import environment, write_tiny_project

pytestmark = pytest.mark.slow

_TIMEOUT_S = 600


def _dvc(project: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "dvc", *arguments]
    done = run_forked(command, cwd=project, environ=environment(), timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_unfiltered_study_does_not_depend_on_the_filter(tmp_path: Path) -> None:
    project = write_tiny_project(tmp_path, train_size=0.15, steps=(6, 6))
    yaml, path = YAML(), project / "params.yaml"
    params = yaml.load(path)
    params["studies"]["plain"] = {**params["studies"]["digits"], "arms": ["full"], "needs": "prepare"}
    yaml.dump(params, path)
    _dvc(project, "repro", "train@plain")
    assert (project / "data/train/plain.parquet").exists()
    assert not any((project / "data" / stage).exists() for stage in ("finetune", "extract", "reduce", "filter"))

    params["filter"]["drop_fraction"] = 0.3
    yaml.dump(params, path)
    assert json.loads(_dvc(project, "status", "--json", "train@plain")) == {}
