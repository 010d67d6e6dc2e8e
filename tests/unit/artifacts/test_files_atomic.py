"""A file is complete or absent after any failure."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.artifacts.files import atomic_path, remove_leftovers, write_bytes, write_text
from pipeline.errors import InputError


def test_content_appears_at_the_end_and_at_once(tmp_path: Path) -> None:
    target = tmp_path / "folder" / "file.txt"
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert temporary.parent == target.parent
        assert not target.exists()
    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    target.write_text("old")

    def write_half() -> None:
        with atomic_path(target) as temporary:
            temporary.write_text("hal")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_bad_input(tmp_path: Path, number: int) -> None:
    def fill_the_disk() -> None:
        with atomic_path(tmp_path / "file.txt") as path:
            path.write_text("half")
            raise OSError(number, os.strerror(number))

    with pytest.raises(InputError) as refused:
        fill_the_disk()
    assert refused.value.key == str(tmp_path / "file.txt")
    assert ("quota" in str(refused.value)) == (number == errno.EDQUOT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO])
def test_errors_of_the_system_without_a_name_get_that_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    target = tmp_path / "file.txt"
    write_text(target, "old")

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is checked below
        write_text(target, "new")
    assert (caught.value.errno, caught.value.filename) == (number, str(target))
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_callers_that_can_do_without_a_file_get_the_errno(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file.bin"
    write_bytes(target, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is checked below
        write_bytes(target, memoryview(b"new"))
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(target))
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), atomic_path(tmp_path / "file.txt"):
        raise PermissionError(errno.EACCES, "no")


def test_a_link_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    """DVC may link outputs into its cache, which must never change."""
    cached, output = tmp_path / "cached", tmp_path / "output"
    cached.write_text("old")
    output.symlink_to(cached)
    write_text(output, "new")
    assert (cached.read_text(), output.read_text()) == ("old", "new")
    assert not output.is_symlink()


def test_text_is_utf8_with_plain_newlines(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "é\n")
    assert (tmp_path / "file").read_bytes() == b"\xc3\xa9\n"


def test_leftovers_of_killed_processes_go_those_of_living_stay(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from pipeline.artifacts.files import atomic_path\n"
        "with atomic_path(Path(sys.argv[1]) / 'killed.v2.npy') as path:\n"
        "    path.write_text('half'); os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    (killed,) = tmp_path.iterdir()
    mine = tmp_path / f".mine.npy.{os.getpid()}.tmp"
    others = ["kept.npy", "kept.tmp", ".notes.tmp", ".a.b.tmp"]
    for other in (mine, *(tmp_path / name for name in others)):
        other.write_text("")
    remove_leftovers(tmp_path)
    assert not killed.exists()
    assert {path.name for path in tmp_path.iterdir()} == {mine.name, *others}


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_folders_that_cannot_be_flushed_are_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As on some network file systems."""
    flush = os.fsync

    def flush_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", flush_files)
    write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"
