"""A project outside the clone, with the installed wheel: `batchsieve init`, then real DVC."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.images import one_tree, write_folder
from tests.fixtures.source_tree import ROOT

_BUILT_FROM = ("batchsieve", "pipeline", "viz", "presets", "machines", "dvc.yaml", "pyproject.toml", "setup.py")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, installed without its requirements into a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in (*_BUILT_FROM, "README.md", "LICENSE"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / "source").mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / "source" / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder / "wheels")]
    subprocess.run([*build, str(folder / "source")], check=True, capture_output=True)
    (wheel,) = (folder / "wheels").iterdir()
    subprocess.run(
        [*pip, "install", "--quiet", "--no-compile", "--no-deps", "--no-index", "-t", str(folder / "site"), str(wheel)],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder / "site"


@pytest.mark.slow
@pytest.mark.subprocess
def test_init_and_dvc_repro_work_outside_the_clone(site: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    write_folder(project / "photos", one_tree(n=12))
    (tmp_path / "weights.pth").write_bytes(b"not read before finetune")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("DVC_", "GIT_"))},
        "PYTHONPATH": str(site),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=project, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = run("batchsieve", "init", "photos", "--weights", "../weights.pth")
    assert "photos: 24 images of 2 classes" in said
    assert "git: repository initialized" in said
    assert "dvc: initialized" in said
    assert "time on this machine: " in said
    assert said.splitlines()[-1].startswith("next: dvc repro ")
    assert run("batchsieve", "validate").startswith("params.yaml: valid")
    # Exit code 0: no problem, and nothing of a clone is missed.
    examined = run("batchsieve", "doctor")
    assert "within their bounds" in examined
    assert "requirements.lock" not in examined
    assert run("batchsieve", "--help").rstrip().endswith("dvc repro runs the stages.")
    assert "own-images" in run("batchsieve", "preset")
    assert (site / "pipeline/training/canonical_runs.json").is_file()

    run("dvc", "repro", "prepare")
    assert (project / "data/prepare/train.npy").is_file()
    # Another version of the code that prepare reads, and one of code that it does not.
    with (site / "pipeline/stages/report.py").open("a") as file:
        file.write("CHANGED = 1\n")
    assert "Stage 'prepare' didn't change, skipping" in run("dvc", "repro", "prepare")
    with (site / "pipeline/datasets/decode.py").open("a") as file:
        file.write("CHANGED = 1\n")
    assert "Running stage 'prepare'" in run("dvc", "repro", "prepare")
    # Every stage of dvc.yaml can be resolved with these parameters.
    listed = run("dvc", "stage", "list", "--name-only").split()
    assert {"code", "prepare", "report", "train@own_images", "filter@timm/tf_efficientnet_lite0"} <= set(listed)
    tracked = subprocess.run(["git", "status", "--short", "-uall"], cwd=project, capture_output=True, text=True)
    assert "photos" not in tracked.stdout
    assert "weights" not in tracked.stdout
