"""JSON files of stages that the app cannot read are refused in one line."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import InputError
from viz.artifacts import PrepareMetrics, read_typed

_DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "no JSON": lambda path: path.write_text("{"),
    "no such key": lambda path: path.write_text("{}"),
    "a folder": lambda path: [path.unlink(), path.mkdir()],  # type: ignore[func-returns-value]
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.json"
    path.write_text('{"class_names": ["cat"]}')
    assert read_typed(path, PrepareMetrics).class_names == ("cat",)
    return path


@pytest.mark.parametrize("damage", _DAMAGE)
def test_a_file_that_cannot_be_read_is_named(path: Path, damage: str) -> None:
    _DAMAGE[damage](path)
    with pytest.raises(InputError) as raised:
        read_typed(path, PrepareMetrics)
    assert raised.value.key == str(path)


def test_a_file_of_another_user_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read every file, and so may these tests."""

    def refused(self: Path, *_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(InputError) as raised:
        read_typed(path, PrepareMetrics)
    assert raised.value.key == str(path)
