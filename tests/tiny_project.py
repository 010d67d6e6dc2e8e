"""A repository with this one's tracked files and parameters that take seconds, and what comes of it."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from made_up import ROOT
from ruamel.yaml import YAML

from pipeline.config.params import load_params

STAGES = ("prepare", "finetune", "extract", "reduce", "filter", "train", "report")
# Times differ from run to run.
_COSTS = {"costs.html", "resources.json"}


def write_tiny_project(folder: Path, *, train_share: float | None = None, steps: tuple[int, int] = (40, 20)) -> Path:
    """A repository without a commit and without dvc.lock; returns `folder`. Skips the test without a checkout of git.

    Args:
        train_share: of the training images; None for all.
        steps: of fine-tuning, and of each run of the study.
    """
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs git and a checkout: the project is made of the tracked files")
    for name in listed.stdout.splitlines():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / "dvc.lock").unlink(missing_ok=True)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    yaml = YAML()
    params = yaml.load(folder / "params.yaml")
    params["prepare"]["train_share"] = train_share
    params["finetune"]["budget"] = {"steps": steps[0]}
    params["reduce"]["tsne"] |= {"early_exaggeration_iter": 50, "n_iter": 50}
    study = params["studies"]["digits"]
    study |= {"batch_sizes": [32], "seeds": [0], "budget": {"steps": steps[1]}}
    yaml.dump(params, folder / "params.yaml")
    load_params(folder / "params.yaml")
    return folder


def environment() -> dict[str, str]:
    """`python` in dvc.yaml is this one, and DVC's own state is the project's."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return {**inherited, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def hashes(project: Path) -> dict[str, str]:
    """Everything that a stage made, but for what it cost."""
    files = [path for stage in STAGES for path in (project / "data" / stage).rglob("*") if path.is_file()]
    return {
        str(path.relative_to(project)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name not in _COSTS | {".gitignore"}
    }
