"""Room and rights are checked by making a file, which is removed again."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.errors import InputError, fix_hint
from pipeline.processes import MIN_BYTES, check_space


@contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """Limit the size of this process's files, as `ulimit -f` does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_room_leaves_nothing_behind(tmp_path: Path) -> None:
    check_space(tmp_path / "new" / "folder", 1000)
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_a_limit_on_file_sizes_is_one_line_with_the_megabytes(tmp_path: Path) -> None:
    with largest_file(2 * MIN_BYTES):
        check_space(tmp_path)
        with pytest.raises(InputError, match=r"the stage will write 3\.1 MB here") as raised:
            check_space(tmp_path, 3 * MIN_BYTES)
    assert raised.value.key == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_or_quota_is_one_line(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(InputError, match="free some space"):
        check_space(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_folder_has_a_fix(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(OSError) as raised:  # noqa: PT011 - the class depends on the depth
        check_space(tmp_path / "data" / "finetune")
    assert "a folder is needed here" in (fix_hint(raised.value) or "")
