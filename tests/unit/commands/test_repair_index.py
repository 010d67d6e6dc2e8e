"""A `.git/index.lock` that a killed DVC or git left is removed, and no other. The processes are real."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from pipeline.commands import repair
from pipeline.commands.doctor.command import check_dvc_files
from pipeline.commands.repair import repair_dvc_files
from pipeline.paths import WorkPaths
from tests.fixtures.three_stages import ThreeStages


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> ThreeStages:
    """A repository with a commit; tests leave it as it is."""
    return ThreeStages(tmp_path_factory.mktemp("project"))


def _lock_index(project: Path, *, age_s: float) -> Path:
    index_lock = project / ".git/index.lock"
    index_lock.write_bytes(b"DIRC")
    os.utime(index_lock, (time.time() - age_s,) * 2)
    return index_lock


def test_an_index_lock_of_a_killed_dvc_is_removed(project: ThreeStages) -> None:
    assert project.run("dvc", "config", "core.autostage", "true").returncode == 0
    index_lock = _lock_index(project.folder, age_s=60)
    assert project.dvc().returncode != 0
    assert [line.partition(": ")[0] for line in project.repair()] == [".git/index.lock"]
    assert not index_lock.exists()
    assert project.dvc().returncode == 0


def test_doctor_reports_a_removed_index_lock(project: ThreeStages, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working tree is below the repository's folder, and the lock is young: its age is waited for."""
    monkeypatch.setattr(repair, "_INDEX_LOCK_AGE_S", 0.3)
    tree = project.folder / "tree"
    subprocess.run(["git", "worktree", "add", "-q", tree], cwd=project.folder, check=True)
    path = subprocess.run(["git", "rev-parse", "--git-path", "index.lock"], cwd=tree, capture_output=True, check=True)
    index_lock = Path(os.fsdecode(path.stdout).rstrip())
    index_lock.touch()
    (finding,) = check_dvc_files(tree)
    assert finding.status == "ok"
    assert finding.detail.startswith(f"{os.path.relpath(index_lock, tree)}: ")
    assert not index_lock.exists()
    subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=project.folder, check=True)


@pytest.mark.parametrize("program", ["git", "dvc"])
def test_an_index_lock_stays_while_a_program_runs(project: ThreeStages, program: str) -> None:
    index_lock = _lock_index(project.folder, age_s=60)
    running = subprocess.Popen([program, "60"], executable="sleep", cwd=project.folder)
    try:
        assert repair_dvc_files(project.folder, WorkPaths()) == []
        index_lock.unlink()  # fails if it is gone
    finally:
        running.kill()
        running.wait()


def test_an_index_lock_that_changes_stays(project: ThreeStages, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a process that cannot be seen and goes on writing."""
    monkeypatch.setattr(repair, "_INDEX_LOCK_AGE_S", 0.3)
    index_lock, wait = _lock_index(project.folder, age_s=-60), time.sleep

    def write(seconds: float) -> None:
        _lock_index(project.folder, age_s=-60)
        wait(seconds)

    monkeypatch.setattr(time, "sleep", write)
    assert repair_dvc_files(project.folder, WorkPaths()) == []
    index_lock.unlink()  # fails if it is gone


def test_an_index_lock_of_the_future_is_removed(project: ThreeStages, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a computer whose clock is ahead."""
    monkeypatch.setattr(repair, "_INDEX_LOCK_AGE_S", 0.2)
    index_lock = _lock_index(project.folder, age_s=-3600)
    assert [str(one.file) for one in repair_dvc_files(project.folder, WorkPaths())] == [".git/index.lock"]
    assert not index_lock.exists()
