"""A disk that refuses any write of any stage: one line, earlier results stay, and the same command ends well."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import folder_arguments
from tests.integration.faults.test_damaged_artifacts import ITEMS, exit_code_of, made_up, project

__all__ = ["made_up", "project"]

# Number of the error -> words of its fix.
_REFUSALS: Mapping[int, str] = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "larger quota",
    errno.EROFS: "mount it writable",
    errno.EACCES: "permissions",
    errno.EIO: "dmesg",
}
_EVERY = 3


class _Disk:
    """Counts the flushes of files and folders, of which each written file has two, and refuses from one of them on.

    Args:
        number: of the error.
        refuses_from: the first flush that fails; None: none does.
        by_name: whether the temporary file cannot be opened, which the system's error names; else it cannot be flushed.
    """

    def __init__(self, *, number: int = 0, refuses_from: int | None = None, by_name: bool = False) -> None:
        self.number, self.refuses_from, self.by_name, self.n_flushes = number, refuses_from, by_name, 0
        self._open = os.open

    def fsync(self, descriptor: int) -> None:
        self.n_flushes += 1
        if self._refuses(self.n_flushes) and not self.by_name:
            raise OSError(self.number, os.strerror(self.number))

    def open(self, path: object, *arguments: int, **options: int) -> int:
        if self.by_name and str(path).endswith(".tmp") and self._refuses(self.n_flushes + 1):
            raise OSError(self.number, os.strerror(self.number), str(path))
        return self._open(path, *arguments, **options)  # type: ignore[arg-type]

    def _refuses(self, flush: int) -> bool:
        return self.refuses_from is not None and flush >= self.refuses_from


@contextmanager
def _using(disk: _Disk) -> Iterator[_Disk]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", disk.fsync)
        patch.setattr(os, "open", disk.open)
        yield disk


def _files(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files if path.name not in ("costs.html", "resources.json")}


def _check_writes(
    run: Callable[[], int], folder: Path, out: Path, number: int, errors: pytest.CaptureFixture[str], *,
    every: int, by_name: bool = False,
) -> None:  # fmt: skip
    """Refuse from each `every`-th write on of a command of the project in `folder`, which writes to `out`."""
    with _using(_Disk()) as disk:
        assert run() == 0
    whole = _files(out)
    assert disk.n_flushes > 1
    for refuses_from in range(1, disk.n_flushes + 1, every):
        shutil.rmtree(folder / "work" / "finished", ignore_errors=True)
        errors.readouterr()
        with _using(_Disk(number=number, refuses_from=refuses_from, by_name=by_name)):
            code = run()
        shown = errors.readouterr().err
        assert code in (0, 2), (refuses_from, shown)
        if code == 2:
            error = printed_error(shown)
            assert "Traceback" not in shown
            assert _REFUSALS[number] in str(error), (refuses_from, shown)
            assert Path(error.key).is_relative_to(folder), (refuses_from, shown)
            assert not error.key.endswith(".tmp"), (refuses_from, shown)
        # Each file is the earlier one or the new one, which are equal.
        left = _files(out)
        assert {name: content for name, content in left.items() if whole.get(name) != content} == {}, refuses_from
        assert not list(folder.rglob(".*.tmp")), refuses_from
    assert run() == 0
    assert _files(out) == whole


def _check_stage(
    stage: str, folder: Path, number: int, errors: pytest.CaptureFixture[str], *, every: int, by_name: bool = False
) -> None:
    out = folder / "data" / stage
    _check_writes(partial(exit_code_of, stage, folder), folder, out, number, errors, every=every, by_name=by_name)


@pytest.mark.parametrize("number", _REFUSALS, ids=errno.errorcode.get)
@pytest.mark.parametrize("by_name", [True, False], ids=["open", "flush"])
def test_at_some_writes_of_the_filter(
    made_up: Path, number: int, by_name: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    _check_stage("filter", made_up, number, capsys, every=_EVERY, by_name=by_name)


@pytest.mark.parametrize("number", _REFUSALS, ids=errno.errorcode.get)
def test_at_some_writes_of_an_export(made_up: Path, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    out = made_up / "out"
    command = ["export", str(out), "--force", *folder_arguments(made_up)[:4]]
    _check_writes(lambda: main(command), made_up, out, number, capsys, every=2 * _EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [*ITEMS, "report"])
def test_at_every_write(project: Path, stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    _check_stage(stage, project, errno.ENOSPC, capsys, every=1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [number for number in _REFUSALS if number != errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("stage", [*ITEMS, "report"])
def test_at_some_writes_of_a_stage(project: Path, stage: str, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    _check_stage(stage, project, number, capsys, every=2 * _EVERY)
