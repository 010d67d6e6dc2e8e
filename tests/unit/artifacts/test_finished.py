"""Cached files: complete or absent, with equal bytes; errors name a damaged entry."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.artifacts.finished import FileCache
from pipeline.errors import InputError
from tests.fixtures.training import TIMEOUT_S, environment

KEY = "0f" * 12


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    paths = {name: tmp_path / "data" / name for name in ("a.npy", "b.json")}
    (tmp_path / "data").mkdir()
    for name, path in paths.items():
        path.write_bytes(name.encode() * 3)
    return paths


@pytest.fixture
def finished(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "finished")


def test_what_is_kept_is_written_again(finished: FileCache, files: dict[str, Path]) -> None:
    assert finished.restore(KEY, files) is None
    before = {path: path.read_bytes() for path in files.values()}
    finished.put(KEY, files, seconds=1.5)
    for path in files.values():
        path.unlink()
    assert finished.restore(KEY, files) == 1.5
    assert {path: path.read_bytes() for path in files.values()} == before
    assert finished.restore("0e" * 12, files) is None


@pytest.mark.parametrize("part", ["new", "old"])
def test_leftovers_of_a_process_with_the_same_id_are_replaced(
    finished: FileCache, files: dict[str, Path], tmp_path: Path, part: str
) -> None:
    """In a container a stage often has the id that the killed one had."""
    finished.put(KEY, files, seconds=1.0)
    leftover = tmp_path / "finished" / f".{KEY}.{part}.{os.getpid()}.tmp"
    leftover.mkdir()
    (leftover / "a.npy").write_bytes(b"partial")
    finished.put(KEY, files, seconds=1.5)
    assert finished.restore(KEY, files) == 1.5
    assert not leftover.exists()


def test_files_that_are_written_again_are_apart_from_the_entry(finished: FileCache, files: dict[str, Path]) -> None:
    finished.put(KEY, files, seconds=1.5)
    assert finished.restore(KEY, files) == 1.5
    files["a.npy"].write_bytes(b"edited in place")
    assert finished.restore(KEY, files) == 1.5
    assert files["a.npy"].read_bytes() == b"a.npy" * 3


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM])
def test_where_there_are_no_links_there_are_copies(
    finished: FileCache, files: dict[str, Path], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "no links")

    monkeypatch.setattr(os, "link", refuse)
    finished.put(KEY, files, seconds=1.5)
    files["a.npy"].unlink()
    assert finished.restore(KEY, files) == 1.5


def test_an_older_entry_is_replaced(finished: FileCache, files: dict[str, Path], tmp_path: Path) -> None:
    finished.put(KEY, files, seconds=1.5)
    files["a.npy"].unlink()
    files["a.npy"].write_bytes(b"newer")
    finished.put(KEY, files, seconds=2.5)
    assert finished.restore(KEY, files) == 2.5
    assert files["a.npy"].read_bytes() == b"newer"
    assert [path.name for path in (tmp_path / "finished").iterdir()] == [KEY]


_DAMAGE: dict[str, Callable[[Path], object]] = {
    "another byte": lambda entry: (entry / "a.npy").write_bytes(b"A.npy" * 3),
    "no file": lambda entry: (entry / "a.npy").unlink(),
    "no record": lambda entry: (entry / "entry.json").unlink(),
    "torn record": lambda entry: (entry / "entry.json").write_text("{"),
    "a list": lambda entry: (entry / "entry.json").write_text("[]"),
    "no digests": lambda entry: (entry / "entry.json").write_text('{"seconds": 1}'),
    "no time": lambda entry: (entry / "entry.json").write_text('{"sha256": {}}'),
    "nothing": lambda entry: [file.unlink() for file in entry.iterdir()],  # type: ignore[func-returns-value]
}


@pytest.mark.parametrize("damage", _DAMAGE)
def test_a_damaged_entry_is_named_and_nothing_is_written(
    finished: FileCache, files: dict[str, Path], tmp_path: Path, damage: str
) -> None:
    finished.put(KEY, files, seconds=1.5)
    for path in files.values():
        path.unlink()
    entry = tmp_path / "finished" / KEY
    _DAMAGE[damage](entry)
    with pytest.raises(InputError) as caught:
        finished.restore(KEY, files)
    assert caught.value.key == str(entry)
    assert not list((tmp_path / "data").iterdir())


def test_entries_unused_for_long_are_removed(finished: FileCache, files: dict[str, Path], tmp_path: Path) -> None:
    old, used = "0a" * 12, "0b" * 12
    for key in (old, used):
        finished.put(key, files, seconds=1.5)
        os.utime(tmp_path / "finished" / key, (0, 0))
    finished.restore(used, files)
    finished.clear(max_age_s=60)
    assert [path.name for path in (tmp_path / "finished").iterdir()] == [used]
    FileCache(tmp_path / "none").clear(max_age_s=0)


def test_a_killed_process_leaves_no_entry(finished: FileCache, files: dict[str, Path], tmp_path: Path) -> None:
    """Killed at the last moment before the rename."""
    script = f"""
import os, signal
from pathlib import Path
from pipeline.artifacts.finished import FileCache
files = {{path.name: path for path in Path({str(tmp_path / "data")!r}).iterdir()}}
Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
FileCache(Path({str(tmp_path / "finished")!r})).put({KEY!r}, files, seconds=1.5)
"""
    root = Path(__file__).parents[3]
    killed = subprocess.run([sys.executable, "-c", script], cwd=root, env=environment(), timeout=TIMEOUT_S, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert finished.restore(KEY, files) is None
    finished.put(KEY, files, seconds=1.5)
    assert [path.name for path in (tmp_path / "finished").iterdir()] == [KEY]


@pytest.mark.parametrize("next_call", ["restore", "put"])
def test_a_kill_during_a_replacement_loses_no_entry(
    finished: FileCache, files: dict[str, Path], tmp_path: Path, next_call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the two renames."""
    rename = Path.rename

    def stopped(source: Path, target: Path) -> Path:
        if target.name == KEY:
            raise KeyboardInterrupt
        return rename(source, target)

    finished.put(KEY, files, seconds=1.5)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", stopped)
        with pytest.raises(KeyboardInterrupt):
            finished.put(KEY, files, seconds=2.5)
    (leftover,) = (tmp_path / "finished").iterdir()
    leftover.rename(str(leftover).replace(f".{os.getpid()}.", ".4194305."))
    if next_call == "put":
        finished.put("0e" * 12, files, seconds=3.5)
    assert finished.restore(KEY, files) == 1.5
    assert not [path for path in (tmp_path / "finished").iterdir() if path.suffix == ".tmp"]


def test_a_damaged_entry_that_was_replaced_does_not_come_back(
    finished: FileCache, files: dict[str, Path], tmp_path: Path
) -> None:
    finished.put(KEY, files, seconds=1.5)
    moved = (tmp_path / "finished" / KEY).rename(tmp_path / f"finished/.{KEY}.old.4194305.tmp")
    (moved / "a.npy").unlink()
    assert finished.restore(KEY, files) is None
