"""`dvc repro` killed in every stage, one after another, ends in the bytes of an undisturbed run."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_up import ROOT
from ruamel.yaml import YAML

from pipeline.config.params import load_params

_TIMEOUT_S = 400
_STAGES = ("prepare", "finetune", "extract", "reduce", "filter", "train", "report")
# How far into its work each stage is when it is killed: its lock is there before it.
_SECONDS = {"finetune": 1.5, "train": 3.0}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = _project(tmp_path_factory.mktemp("undisturbed"))
    done = subprocess.run(_repro(), cwd=project, env=_environment(), capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return project


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_dvc_is_stopped_in_every_stage(tmp_path: Path, undisturbed: Path, sent: signal.Signals) -> None:
    project = _project(tmp_path)
    for stage in _STAGES:
        _stop_in(project, stage, sent)
    done = subprocess.run(_repro(), cwd=project, env=_environment(), capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _hashes(project) == _hashes(undisturbed)
    assert [path for path in (*project.glob("data/**/*"), *project.glob(".work/**/*")) if ".tmp" in path.name] == []


def _project(folder: Path) -> Path:
    """A repository of its own with this one's tracked files, and parameters that take seconds."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / "dvc.lock").unlink(missing_ok=True)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    yaml = YAML()
    params = yaml.load(folder / "params.yaml")
    params["finetune"]["budget"] = {"steps": 40}
    params["reduce"]["tsne"] |= {"early_exaggeration_iter": 50, "n_iter": 50}
    study = params["studies"]["digits"]
    study |= {"batch_sizes": [32], "seeds": [0], "budget": {"steps": 20}}
    yaml.dump(params, folder / "params.yaml")
    load_params(folder / "params.yaml")
    return folder


def _repro() -> list[str]:
    return [sys.executable, "-m", "dvc", "repro"]


def _environment() -> dict[str, str]:
    """`python` in dvc.yaml is this one, and DVC's own state is the project's."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


def _stop_in(project: Path, stage: str, sent: signal.Signals) -> None:
    """Send `sent` to DVC alone, as an out-of-memory killer would, or to its group, as Ctrl-C does."""
    for lock in project.glob(f".work/locks/{stage}*.lock"):
        lock.unlink()
    dvc = subprocess.Popen(
        _repro(), cwd=project, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True, preexec_fn=_heed_interrupts,
    )  # fmt: skip
    deadline = time.monotonic() + _TIMEOUT_S
    while not list(project.glob(f".work/locks/{stage}*.lock")):
        assert dvc.poll() is None, f"{stage} never started: {dvc.stdout.read().decode() if dvc.stdout else ''}"
        assert time.monotonic() < deadline, stage
        time.sleep(0.02)
    time.sleep(_SECONDS.get(stage, 0.1))
    assert dvc.poll() is None, f"{stage} had finished"
    if sent == signal.SIGKILL:
        dvc.kill()
    else:
        os.killpg(dvc.pid, sent)
    dvc.communicate(timeout=60)
    deadline = time.monotonic() + 20
    while _running_in(project):
        assert time.monotonic() < deadline, f"orphans of {stage}: {_running_in(project)}"
        time.sleep(0.05)


def _heed_interrupts() -> None:
    """A shell's background job, and all that it starts, would ignore them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _running_in(project: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == project:
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended, or is another user's
    return [command for command in found if "pipeline.stages" in command]


def _hashes(project: Path) -> dict[str, str]:
    """Everything that a stage made, but for the page and the document, which show how long it took."""
    files = [path for stage in _STAGES for path in (project / "data" / stage).rglob("*") if path.is_file()]
    left_out = {"report.html", "report.md", "resources.json", ".gitignore"}
    return {
        str(path.relative_to(project)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name not in left_out
    }
