"""A disk that refuses any write of any stage: one line, earlier results stay, and the same command ends well."""

import errno
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest

from pipeline.__main__ import main
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import folder_arguments
from tests.fixtures.unsaved_figures import figures_unsaved
from tests.integration.faults.test_damaged_artifacts import ITEMS, exit_code_of, made_up, project

__all__ = ["made_up", "project"]

# Number of the error -> words of its fix.
REFUSALS: Mapping[int, str] = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "larger quota",
    errno.EROFS: "mount it writable",
    errno.EACCES: "permissions",
    errno.EIO: "dmesg",
}
_EVERY = 3


class Disk:
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
def _using(disk: Disk) -> Iterator[Disk]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", disk.fsync)
        patch.setattr(os, "open", disk.open)
        yield disk


def files_of(folder: Path, leave_out: Collection[str] = ()) -> dict[str, bytes]:
    """Return the files below a folder, without those that contain times, and others: path -> content."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    leave_out = {"costs.html", "resources.json", *leave_out}
    return {str(path): path.read_bytes() for path in files if path.name not in leave_out}


def check_writes(
    run: Callable[[], int], folder: Path, out: Path, errors: pytest.CaptureFixture[str], *,
    disks: Callable[[int], Iterator[Disk]], again: Sequence[Path] = (), leave_out: Collection[str] = (),
) -> None:  # fmt: skip
    """Refuse writes of a command of the project in `folder`, which writes to `out`.

    Args:
        disks: yields disks with each of the errors for a command with this number of flushes.
        again: folders to remove before each run, so that the command writes everything again.
        leave_out: names of outputs that contain times.
    """
    again = [*again, folder / "work" / "finished"]
    with _using(Disk()) as whole_disk:
        assert run() == 0
    whole = files_of(out, leave_out)
    refused = set()
    for disk in disks(whole_disk.n_flushes):
        for removed in again:
            shutil.rmtree(removed, ignore_errors=True)
        errors.readouterr()
        with _using(disk):
            code = run()
        case, shown = (disk.number, disk.refuses_from), errors.readouterr().err
        assert code in (0, 2), (case, shown)
        if code == 2:
            refused.add(disk.number)
            error = printed_error(shown)
            assert "Traceback" not in shown
            assert REFUSALS[disk.number] in str(error), (case, shown)
            assert Path(error.key).is_relative_to(folder), (case, shown)
            assert ".tmp" not in error.key, (case, shown)
        # Each file is the earlier one or the new one, which are equal.
        left = files_of(out, leave_out)
        assert {name: content for name, content in left.items() if whole.get(name) != content} == {}, case
        assert not list(folder.rglob(".*.tmp")), case
    assert refused == {*REFUSALS}
    assert run() == 0
    assert files_of(out, leave_out) == whole


def in_turn(n_flushes: int, numbers: Iterable[int], *, every: int, by_name: bool = False) -> Iterator[Disk]:
    """Yield a disk for every `every`-th flush, which refuses from there on, with the errors in turn."""
    for refuses_from, number in zip(range(1, n_flushes + 1, every), cycle(numbers), strict=False):
        yield Disk(number=number, refuses_from=refuses_from, by_name=by_name)


@pytest.mark.parametrize("by_name", [True, False], ids=["open", "flush"])
def test_at_every_write_of_the_filter(made_up: Path, by_name: bool, capsys: pytest.CaptureFixture[str]) -> None:
    check_writes(
        partial(exit_code_of, "filter", made_up), made_up, made_up / "data" / "filter", capsys,
        disks=partial(in_turn, numbers=REFUSALS, every=1, by_name=by_name),
    )  # fmt: skip


def test_at_some_writes_of_an_export(made_up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = made_up / "out"
    command = ["export", str(out), "--force", *folder_arguments(made_up)[:4]]
    check_writes(
        lambda: main(command), made_up, out, capsys,
        disks=partial(in_turn, numbers=REFUSALS, every=_EVERY),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("stage", [*ITEMS, "report"])
def test_at_every_write(project: Path, stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk at each; the other errors, which are raised as another class, in turn at some."""

    def disks(n_flushes: int) -> Iterator[Disk]:
        yield from in_turn(n_flushes, [errno.ENOSPC], every=1)
        others = [number for number in REFUSALS if number != errno.ENOSPC]
        yield from in_turn(n_flushes, others, every=_EVERY)

    with figures_unsaved():
        check_writes(partial(exit_code_of, stage, project), project, project / "data" / stage, capsys, disks=disks)
