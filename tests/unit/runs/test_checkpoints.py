"""A checkpoint names its run: that of another run is refused, and what is no checkpoint is named and passed over."""

import os
import shutil
from pathlib import Path

import pytest

from pipeline.errors import DataError
from pipeline.runs.checkpoints import RunCheckpoints, clear_finished, unused_checkpoints
from pipeline.training.checkpointing import Checkpoints
from pipeline.training.run_key import checkpoint_folder_name
from tests.fixtures.checkpoints import files, never, same, state_of


def test_a_run_gets_its_own_state(tmp_path: Path) -> None:
    RunCheckpoints(tmp_path, "a").save(3, state_of(3))
    latest = RunCheckpoints(tmp_path, "a").load_latest(never)
    assert latest is not None
    assert latest[0] == 3
    assert same(latest[1], state_of(3))


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, what: str) -> None:
    """The file is whole, and its name is right."""
    own, other = tmp_path / "own", tmp_path / "other"
    RunCheckpoints(other, "b").save(5, state_of(5))
    if what == "folder":
        other.rename(own)
    else:
        RunCheckpoints(own, "a").save(3, state_of(3))
        shutil.copy(files(other)[0], own)
    with pytest.raises(DataError) as refused:
        RunCheckpoints(own, "a").load_latest(never)
    assert refused.value.key == str(own)
    assert "its checkpoint of step 5 is one of b, not of a; remove the folder, and run the same command" in str(
        refused.value
    )


def test_one_of_an_earlier_version_names_no_run(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(3, state_of(3))
    latest = RunCheckpoints(tmp_path, "a").load_latest(never)
    assert latest is not None
    assert same(latest[1], state_of(3))


def test_a_file_with_a_wrong_name_is_named_and_passed_over(tmp_path: Path) -> None:
    own = RunCheckpoints(tmp_path, "a", keep=2)
    for step in (1, 2):
        own.save(step, state_of(step))
    newest = files(tmp_path)[-1]
    wrong = newest.rename(newest.with_name("step-2.pt"))
    os.mkfifo(tmp_path / newest.name)
    lines: list[str] = []
    latest = RunCheckpoints(tmp_path, "a").load_latest(lines.append)
    assert latest is not None
    assert latest[0] == 1
    end = ": is no file with the name of a checkpoint; skipped"
    assert sorted(lines) == sorted([f"{tmp_path / newest.name}{end}", f"{wrong}{end}"])


def test_folders_of_no_run_are_named(tmp_path: Path) -> None:
    for name in (checkpoint_folder_name("a"), "a-0123abcd", "b"):
        Checkpoints(tmp_path / name).save(1, {})
    lines = list(unused_checkpoints(tmp_path, ["a", ""]))
    assert [line.partition(": ")[0] for line in lines] == [str(tmp_path / "a-0123abcd"), str(tmp_path / "b")]
    assert not list(unused_checkpoints(tmp_path / "nowhere", []))


def test_finished_runs_keep_no_checkpoints(tmp_path: Path) -> None:
    """Of any version of the code. A skipped run has no key."""
    for name in (checkpoint_folder_name("a"), "a-0123abcd", "b-0123abcd"):
        Checkpoints(tmp_path / name).save(1, {})
    clear_finished(tmp_path, ["a", ""])
    assert [path.name for path in tmp_path.iterdir()] == ["b-0123abcd"]
