"""A disk that refuses any write of preparation, search, archive or import: one line, and the same command ends well.

The errors of tests/integration/faults/test_full_disk.py are raised where a written file is flushed. A limit on file
sizes, which the system enforces, comes inside the write itself.
"""

import errno
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipeline.__main__ import main
from pipeline.stages import train as train_stage
from tests.fixtures.made_up_runs import MadeUpRuns
from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import folder_arguments, write_params
from tests.fixtures.training import stage, write_project
from tests.fixtures.tuning import NAME, tune, write_search
from tests.integration.faults.test_damaged_artifacts import exit_code_of, made_up
from tests.integration.faults.test_full_disk import REFUSALS, Disk, check_writes, files_of, in_turn
from tests.unit.test_processes_space import largest_file

__all__ = ["made_up"]

_EVERY = 3
_FEW_RUNS: Mapping[str, Any] = {"models": ["small_cnn"], "arms": ["full"]}
"""Keys of a study of two runs, of which the first keeps its weights."""
_SEARCH: Mapping[str, Any] = {"trials": 2, "epochs": 2, "max_concurrent_trials": 1}


class _Command(NamedTuple):
    """A command of the project in `folder`, which writes to `out`.

    Attributes:
        again: folders to remove before each run, so that it writes everything again.
        leave_out: names of outputs that contain times.
    """

    run: Callable[[], int]
    folder: Path
    out: Path
    again: Sequence[Path] = ()
    leave_out: Collection[str] = ()


def _prepare(folder: Path) -> _Command:
    write_params(folder)
    return _Command(partial(exit_code_of, "prepare", folder), folder, folder / "data" / "prepare")


def _tune(folder: Path) -> _Command:
    data = write_search(folder, **_SEARCH)
    times = (data.tuning_summary(NAME).name, data.tuning_page(NAME).name, data.tuning_provenance(NAME).name)
    return _Command(partial(tune, folder), folder, data.root / "tune", [folder / "work" / "tune"], times)


def _pack(project: Path) -> _Command:
    out = project / "packed"
    out.mkdir(exist_ok=True)
    command = ["runs", "pack", str(out / "results.tar.xz"), *folder_arguments(project)]
    return _Command(partial(main, command), project, out)


def _import(folder: Path) -> _Command:
    theirs, ours = folder / "theirs", folder / "ours"
    plan = {"question": "q", "hypotheses": ["h"], "rate_selection": "s"}
    for project in (theirs, ours):
        project.mkdir()
        write_project(project, study={**_FEW_RUNS, "plan": plan})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_stage, "execute_run", MadeUpRuns(lambda spec: 0.5))
        assert stage("train", theirs) == 0
    assert list((theirs / "work/cells").glob("*/weights.pt"))
    command = ["runs", "import", str(theirs / "work"), f"--work={ours / 'work'}", f"--params={ours / 'params.yaml'}"]
    cells = ours / "work" / "cells"
    return _Command(partial(main, command), ours, cells, [cells])


_COMMANDS = {"prepare": _prepare, "tune": _tune, "runs pack": _pack, "runs import": _import}


_SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in _COMMANDS if name != "runs pack"]


@pytest.fixture(params=["runs pack", *_SLOW])
def command(request: pytest.FixtureRequest, made_up: Path, tmp_path: Path) -> _Command:
    return _COMMANDS[request.param](made_up if request.param == "runs pack" else tmp_path)


def test_at_every_write(command: _Command, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk at each write, or each third of a search; the other errors in turn at some."""

    def disks(n_flushes: int) -> Iterator[Disk]:
        assert n_flushes > 1
        every = _EVERY if command.out.name == "tune" else 1
        yield from in_turn(n_flushes, [errno.ENOSPC], every=every)
        others = [number for number in REFUSALS if number != errno.ENOSPC]
        # Few writes get every error at the first.
        repeated = -(-len(others) * _EVERY // n_flushes)
        for turn in range(repeated):
            yield from in_turn(n_flushes, [*others[turn:], *others[:turn]], every=_EVERY if repeated == 1 else 1)

    check_writes(
        command.run, command.folder, command.out, capsys, disks=disks, again=command.again, leave_out=command.leave_out
    )


def test_a_limit_on_file_sizes(command: _Command, capsys: pytest.CaptureFixture[str]) -> None:
    """The system refuses the byte after the limit: in the middle of each file, and at its last byte."""
    assert command.run() == 0
    whole = files_of(command.out, command.leave_out)
    sizes = sorted({len(content) for content in whole.values() if content})
    limits = sorted({0, *(size // 2 for size in sizes), *(size - 1 for size in sizes)})
    for limit in limits:
        for removed in (*command.again, command.folder / "work" / "finished"):
            shutil.rmtree(removed, ignore_errors=True)
        capsys.readouterr()
        with largest_file(limit):
            code = command.run()
        shown = capsys.readouterr().err
        assert code == 2, (limit, shown)
        assert "Traceback" not in shown, limit
        error = printed_error(shown)
        assert "limit" in str(error), (limit, shown)
        assert Path(error.key).is_relative_to(command.folder), (limit, shown)
        assert ".tmp" not in error.key, (limit, shown)
        left = files_of(command.out, command.leave_out)
        assert {name for name, content in left.items() if whole.get(name) != content} == set(), limit
        assert not list(command.folder.rglob(".*.tmp")), limit
    assert command.run() == 0
    assert files_of(command.out, command.leave_out) == whole
