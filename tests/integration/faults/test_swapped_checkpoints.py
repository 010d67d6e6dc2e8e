"""Checkpoints of interrupted runs that are damaged, swapped or renamed: each is named, and no result is another.

A run resumes from its own valid checkpoints alone. The line names a folder; without it the same command ends in the
bytes of an undisturbed study.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.artifacts.files import read_json
from pipeline.paths import DataPaths
from pipeline.training.checkpointing import Checkpoints
from tests.fixtures.interrupted_study import StudyProject
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import NETWORK
from tests.fixtures.training import stage, write_project

pytestmark = pytest.mark.slow

_STUDY: dict[str, Any] = {"arms": ["full"], "seeds": [0, 1]}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> StudyProject:
    """Two runs with their last checkpoints, as if each had been killed before it was recorded; `data` has results."""
    study = StudyProject.write(tmp_path_factory.mktemp("interrupted") / "study", study=_STUDY)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(Checkpoints, "clear", lambda self: None)
        assert stage("train", study.folder) == 0
    shutil.rmtree(study.work.ledger)
    assert len(_folders(study)) == 2
    return study


@pytest.fixture
def study(interrupted: StudyProject, tmp_path: Path) -> StudyProject:
    """A copy to change, without results."""
    shutil.copytree(interrupted.folder, tmp_path / "study")
    shutil.rmtree(tmp_path / "study/data/train")
    return StudyProject(tmp_path / "study")


def _folders(study: StudyProject) -> list[Path]:
    return sorted((study.work.root / "checkpoints/train@tiny").iterdir())


def _swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def _copy_files(source: Path, target: Path) -> None:
    for path in target.iterdir():
        path.unlink()
    for path in source.iterdir():
        shutil.copy(path, target)


def _assert_undisturbed(study: StudyProject, interrupted: StudyProject) -> None:
    """Compare all results; those of the ledger are in the study's tables."""
    outcome = study.outcome() | {"ledger": {}}
    assert outcome == interrupted.outcome() | {"ledger": {}}
    assert not study.checkpoints()


@pytest.mark.parametrize("swap", [_swap, _copy_files], ids=["folders", "files"])
def test_a_checkpoint_of_another_run_is_refused(
    study: StudyProject,
    swap: Callable[[Path, Path], None],
    interrupted: StudyProject,
    capsys: pytest.CaptureFixture[str],
) -> None:
    swap(*_folders(study))
    capsys.readouterr()
    # Files of the first run are in the folder of the second, or both are swapped.
    assert stage("train", study.folder) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    error = printed_error(line)
    assert Path(error.key) in _folders(study)
    assert re.search(r"its checkpoint of step \d+ is one of [0-9a-f]{24}, not of [0-9a-f]{24}; remove the folder", line)
    for folder in _folders(study):
        shutil.rmtree(folder)
    assert stage("train", study.folder) == 0
    _assert_undisturbed(study, interrupted)


@pytest.mark.distributed
def test_two_ranks_say_it_once(study: StudyProject) -> None:
    _swap(*_folders(study))
    done = StudyProject.write(study.folder, study=_STUDY, workers=2).run()
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert Path(printed_error(line).key) in _folders(study)


def _rename_folders(folders: list[Path]) -> list[Path]:
    return [folder.rename(folder.with_name(f"copy of {folder.name}")) for folder in folders]


def _rename_files(folders: list[Path]) -> list[Path]:
    return [path.rename(path.with_name(f"{path.name}.bak")) for folder in folders for path in folder.iterdir()]


def _damage(folders: list[Path]) -> list[Path]:
    files = [path for folder in folders for path in folder.iterdir()]
    for path in files:
        path.write_bytes(path.read_bytes()[:-1])
    return files


@pytest.mark.parametrize("change", [_rename_folders, _rename_files, _damage])
def test_what_cannot_be_used_is_named_and_trained_again(
    study: StudyProject,
    change: Callable[[list[Path]], list[Path]],
    interrupted: StudyProject,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = change(_folders(study))
    capsys.readouterr()
    assert stage("train", study.folder) == 0
    said = capsys.readouterr().err
    assert "resumed from step" not in said
    for path in named:
        assert len([line for line in said.splitlines() if f"{path}: " in line]) == 1, path
    for left in [path for path in named if path.exists()]:
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    _assert_undisturbed(study, interrupted)


def test_the_network_of_another_fold_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The checkpoints of two folds of fine-tuning, swapped, and then their finished networks."""
    data = write_project(tmp_path, finetune={"folds": 2, "budget": {"steps": 4}, "checkpoint": {"steps": 2}})
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(Checkpoints, "clear", lambda self: None)
        assert stage("finetune", tmp_path) == 0
    expected = _extractor(data)
    finished = next(path for path in (tmp_path / "work/finished").iterdir() if path.name.startswith("finetune"))
    aside = finished.rename(tmp_path / "aside")
    checkpoints = tmp_path / f"work/checkpoints/finetune@{NETWORK}"
    for folder, restore in ((checkpoints, None), (finished, aside)):
        if restore is not None:
            shutil.rmtree(finished, ignore_errors=True)
            restore.rename(finished)
        _swap(*sorted(path for path in folder.iterdir() if path.is_dir()))
        capsys.readouterr()
        assert stage("finetune", tmp_path) == 2
        error = printed_error(capsys.readouterr().err.splitlines()[-1])
        assert Path(error.key).parent == folder
        assert "remove the folder, and run the same command again" in str(error)
        shutil.rmtree(folder)
        data.extractor(NETWORK).unlink()
        assert stage("finetune", tmp_path) == 0
        assert _extractor(data) == expected


def _extractor(data: DataPaths) -> tuple[bytes, object]:
    return data.extractor(NETWORK).read_bytes(), read_json(data.finetune_metrics(NETWORK))
