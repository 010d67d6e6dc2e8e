"""A disk that fills up at any write of any stage: one line, earlier results stay, and the same command ends well."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fixtures.printed_errors import printed_error
from tests.integration.faults.test_damaged_artifacts import ITEMS, exit_code_of, made_up, project

__all__ = ["made_up", "project"]


class _Disk:
    """Counts flushes, of which each written file and its folder has one, and is full from one of them on."""

    def __init__(self, *, full_at: int | None) -> None:
        self.full_at, self.n_flushes = full_at, 0

    def fsync(self, descriptor: int) -> None:
        self.n_flushes += 1
        if self.full_at is not None and self.n_flushes >= self.full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def _disk(*, full_at: int | None) -> Iterator[_Disk]:
    disk = _Disk(full_at=full_at)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", disk.fsync)
        yield disk


def _outputs(folder: Path, stage: str) -> dict[str, bytes]:
    files = [path for path in (folder / "data" / stage).rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files if path.name not in ("costs.html", "resources.json")}


def _check_every_write(stage: str, folder: Path, errors: pytest.CaptureFixture[str], *, every: int) -> None:
    with _disk(full_at=None) as disk:
        assert exit_code_of(stage, folder) == 0
    whole = _outputs(folder, stage)
    assert disk.n_flushes > 1
    for full_at in range(1, disk.n_flushes + 1, every):
        shutil.rmtree(folder / "work" / "finished", ignore_errors=True)
        errors.readouterr()
        with _disk(full_at=full_at):
            code = exit_code_of(stage, folder)
        shown = errors.readouterr().err
        assert code in (0, 2), (stage, full_at, shown)
        if code == 2:
            error = printed_error(shown)
            assert "free some space" in str(error), (stage, full_at)
        # Each file is the earlier one or the new one, which are equal.
        left = _outputs(folder, stage)
        assert {name: content for name, content in left.items() if whole.get(name) != content} == {}, (stage, full_at)
        assert not list(folder.rglob(".*.tmp")), (stage, full_at)
    assert exit_code_of(stage, folder) == 0
    assert _outputs(folder, stage) == whole


def test_at_some_writes_of_the_filter(made_up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _check_every_write("filter", made_up, capsys, every=3)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [*ITEMS, "report"])
def test_at_every_write(project: Path, stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    _check_every_write(stage, project, capsys, every=1)
