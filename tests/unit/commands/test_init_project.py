"""The DVC folder of a new project: a half-made one is made again, and one with content stays. DVC is real."""

import subprocess
from pathlib import Path

import pytest

from pipeline.commands.init.project import start_repositories


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository of git."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("made", [[], ["config", ".gitignore", "tmp/btime"]])
def test_a_half_made_dvc_folder_is_initialized(made: list[str], folder: Path) -> None:
    """As DVC leaves it when it is killed."""
    (folder / ".dvc/tmp").mkdir(parents=True)
    for name in made:
        (folder / ".dvc" / name).write_text("/tmp\n" if name == ".gitignore" else "")
    assert [line.partition(": ")[0] for line in start_repositories(folder)] == ["dvc"]
    assert "autostage = true" in (folder / ".dvc/config").read_text()
    assert list(start_repositories(folder)) == []


@pytest.mark.parametrize("name", ["config", "config.local", "cache/files/md5/0f/0a"])
def test_a_dvc_folder_with_content_stays(name: str, folder: Path) -> None:
    """DVC's own `init` leaves an empty config, next to which there may be a cache."""
    (folder / ".dvc/config").parent.mkdir()
    (folder / ".dvc/config").touch()
    file = folder / ".dvc" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("[core]\n")
    before = _files(folder / ".dvc")
    assert list(start_repositories(folder)) == []
    assert _files(folder / ".dvc") == before


def test_a_project_uses_the_dvc_folder_around_it(folder: Path) -> None:
    (folder / ".dvc").mkdir()
    (folder / "project").mkdir()
    assert list(start_repositories(folder / "project")) == []
    assert not (folder / "project/.dvc").exists()
