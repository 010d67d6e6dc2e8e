"""A limit on memory that is too small for a stage: one line, earlier results stay, and the same command ends well."""

import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import write_params
from tests.fixtures.training import run
from tests.integration.faults.test_damaged_artifacts import ITEMS, exit_code_of, project

__all__ = ["project"]

pytestmark = [pytest.mark.slow, pytest.mark.subprocess, pytest.mark.timeout(1500)]

_TOO_SMALL_MIB = (0, 16, 256)
_SOMETIMES_MIB = (600, 1500)
"""Suffice for some stages, and end others in the middle of their computation."""
_ENOUGH_MIB = 2048
_ROOMS_MIB = (*_TOO_SMALL_MIB, *_SOMETIMES_MIB, _ENOUGH_MIB)
# The parent imports the stages and computes nothing. Each child may have the given room above the memory of the
# imports, as a limit of a batch system leaves it: less than that ends in the loader of the system's libraries.
_LIMITED = """
import os, resource, shutil, sys, traceback
from pathlib import Path
from tests.integration.faults.test_damaged_artifacts import exit_code_of

out, rooms = Path(sys.argv[1]), sys.argv[2].split(",")
for stage, folder in (word.split("=") for word in sys.argv[3:]):
    for room in rooms:
        pid = os.fork()
        if pid == 0:
            code = 1
            os.dup2(os.open(out / f"{stage} {room}", os.O_CREAT | os.O_WRONLY), 2)
            shutil.rmtree(Path(folder, "work/finished"), ignore_errors=True)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + (int(room) << 20)
            try:
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
                code = exit_code_of(stage, Path(folder))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        (out / f"{stage} {room} code").write_text(str(status))
"""


def _outputs(folder: Path) -> dict[str, bytes]:
    files = [path for path in (folder / "data").rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name not in ("costs.html", "resources.json") and not path.name.endswith(".tmp")
    }


@pytest.fixture(scope="module")
def folders(project: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The project in which each stage has run: digits for `prepare`, which the other has not."""
    digits = tmp_path_factory.mktemp("digits")
    write_params(digits)
    assert exit_code_of("prepare", digits) == 0
    return {"prepare": digits, **dict.fromkeys((*ITEMS, "report"), project)}


@pytest.fixture(scope="module")
def limited(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each stage said and returned with each room; no file has changed."""
    out = tmp_path_factory.mktemp("limited")
    whole = {folder: _outputs(folder) for folder in folders.values()}
    words = [f"{stage}={folder}" for stage, folder in folders.items()]
    command = [sys.executable, "-c", _LIMITED, str(out), ",".join(map(str, _ROOMS_MIB)), *words]
    done = run(command, timeout=1200, fresh=True)
    assert done.returncode == 0, done.stderr
    assert {folder: _outputs(folder) for folder in folders.values()} == whole
    return out


@pytest.mark.parametrize("stage", ["prepare", *ITEMS, "report"])
def test_a_limit_too_small(folders: dict[str, Path], limited: Path, stage: str) -> None:
    codes = {}
    for room in _ROOMS_MIB:
        shown = (limited / f"{stage} {room}").read_text(errors="replace")
        codes[room] = int((limited / f"{stage} {room} code").read_text())
        allowed = {2} if room in _TOO_SMALL_MIB else {0} if room == _ENOUGH_MIB else {0, 2}
        if room in _SOMETIMES_MIB and "terminate called" in shown:
            allowed = {-signal.SIGABRT}  # C++ has no other end for a thread of Arrow without memory
        assert codes[room] in allowed, (stage, room, codes, shown)
        assert "Traceback" not in shown, (stage, room, shown)
        if codes[room] == 2:
            assert "memory" in str(printed_error(shown)), (stage, room, shown)
    folder = folders[stage]
    whole = _outputs(folder)
    shutil.rmtree(folder / "work/finished", ignore_errors=True)
    assert exit_code_of(stage, folder) == 0
    assert _outputs(folder) == whole
    assert not list(folder.rglob(".*.tmp"))
