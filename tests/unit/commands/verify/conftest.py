"""What most tests of `verify` begin with: an honest project, a copy to change, and few canonical runs."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pipeline.training import canonical_runs
from tests.fixtures.verified import write_verified_project


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose records, tables and report agree, shared by the tests of a module."""
    return write_verified_project(tmp_path_factory.mktemp("honest"))


@pytest.fixture
def project(honest: Path, tmp_path: Path) -> Path:
    """A copy of the honest project to change."""
    return shutil.copytree(honest, tmp_path / "project")


@pytest.fixture(autouse=True)
def few_canonical_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, which tell whether this machine may accuse, take minutes; `verify` compares those that both have."""
    names = ("small_cnn muon", "small_cnn adamw")
    monkeypatch.setattr(canonical_runs, "_JOBS", {name: canonical_runs._JOBS[name] for name in names})


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """`verify --retrain` sets the number of threads that a run was trained with."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
