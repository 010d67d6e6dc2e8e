"""Lock files where the file system has no locks."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from pipeline.errors import InputError
from pipeline.locks import file_lock


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(InputError) as raised, file_lock(tmp_path / "train.lock", "train"):
        pass
    assert raised.value.key == str(tmp_path / "train.lock")
