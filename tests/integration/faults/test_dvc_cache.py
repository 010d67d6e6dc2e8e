"""A flipped byte in DVC's cache: after a checkout the next stage notices, and its line names the way back."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.artifacts.provenance import sha256_of_file
from tests.fixtures.forked import run_forked
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.tiny_project import environment, write_tiny_project

pytestmark = [pytest.mark.slow, pytest.mark.subprocess, pytest.mark.timeout(900)]

_TIMEOUT_S = 400  # for one command, while other jobs use the machine


def _run(project: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    return run_forked([sys.executable, "-m", *argv], cwd=project, environ=environment(), timeout=_TIMEOUT_S)


def _cached(project: Path, file: Path) -> Path:
    """Return the file in DVC's cache of which `file` is a copy."""
    content = file.read_bytes()
    (found,) = [path for path in (project / ".dvc/cache").rglob("*") if path.is_file() and path.read_bytes() == content]
    return found


def test_a_flipped_byte(tmp_path: Path) -> None:
    project = write_tiny_project(tmp_path, train_size=0.15, steps=(6, 6))
    done = _run(project, "dvc", "repro", "prepare")
    assert done.returncode == 0, done.stderr
    images = project / "data/prepare/train.npy"
    whole, cached = sha256_of_file(images), _cached(project, images)
    cached.chmod(0o644)
    content = bytearray(cached.read_bytes())
    content[-100] ^= 1
    cached.write_bytes(content)
    cached.chmod(0o444)
    shutil.rmtree(project / ".dvc/tmp", ignore_errors=True)
    images.unlink()
    # It ends with 1, since the outputs of later stages are nowhere.
    _run(project, "dvc", "checkout")
    assert images.read_bytes() == bytes(content), "DVC does not look into its cache"
    refused = _run(project, "pipeline.stages.finetune", "--network", "resnet18")
    assert refused.returncode == 2
    error = printed_error(refused.stderr)
    assert error.key == "data/prepare/train.npy"
    assert "run `python -m pipeline.stages.prepare`" in str(error)
    done = _run(project, "pipeline.stages.prepare")
    assert done.returncode == 0, done.stderr
    assert sha256_of_file(images) == whole
