"""A limit on memory that is too small for a stage: one line, earlier results stay, and the same command ends well."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.fixtures.printed_errors import printed_error
from tests.fixtures.projects import write_params
from tests.fixtures.training import run
from tests.integration.faults.test_damaged_artifacts import ITEMS, exit_code_of, project

__all__ = ["project"]

pytestmark = [pytest.mark.slow, pytest.mark.subprocess, pytest.mark.timeout(900)]

_ROOMS_MIB = (0, 1, 16, 64, 256, 2048)
"""The last one suffices."""
# The parent imports the stages and computes nothing. Each child may have the given room above the memory of the
# imports, as a limit of a batch system leaves it: less than that ends in the loader of the system's libraries.
_LIMITED = """
import os, resource, shutil, sys, traceback
from pathlib import Path
from tests.integration.faults.test_damaged_artifacts import exit_code_of

folder, out = Path(sys.argv[1]), Path(sys.argv[2])
for stage in sys.argv[4].split(","):
    for room in sys.argv[3].split(","):
        pid = os.fork()
        if pid == 0:
            code = 1
            os.dup2(os.open(out / f"{stage} {room}", os.O_CREAT | os.O_WRONLY), 2)
            shutil.rmtree(folder / "work/finished", ignore_errors=True)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + (int(room) << 20)
            try:
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
                code = exit_code_of(stage, folder)
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


def _check(folder: Path, stages: list[str], out: Path) -> None:
    whole = _outputs(folder)
    rooms = ",".join(map(str, _ROOMS_MIB))
    done = run(
        [sys.executable, "-c", _LIMITED, str(folder), str(out), rooms, ",".join(stages)], timeout=600, fresh=True
    )
    assert done.returncode == 0, done.stderr
    for stage in stages:
        codes = {}
        for room in _ROOMS_MIB:
            shown = (out / f"{stage} {room}").read_text(errors="replace")
            codes[room] = int((out / f"{stage} {room} code").read_text())
            assert codes[room] == (0 if room == _ROOMS_MIB[-1] else 2), (stage, room, codes, shown)
            assert "Traceback" not in shown, (stage, room, shown)
            if codes[room] == 2:
                assert "memory" in str(printed_error(shown)), (stage, room, shown)
    assert _outputs(folder) == whole
    for stage in stages:
        shutil.rmtree(folder / "work/finished", ignore_errors=True)
        assert exit_code_of(stage, folder) == 0, stage
    assert _outputs(folder) == whole
    assert not list(folder.rglob(".*.tmp"))


@pytest.mark.parametrize("stage", [*ITEMS, "report"])
def test_a_limit_too_small(project: Path, stage: str, tmp_path: Path) -> None:
    _check(project, [stage], tmp_path)


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    folder.mkdir()
    write_params(folder)
    assert exit_code_of("prepare", folder) == 0
    return folder


def test_a_limit_too_small_for_the_images(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    _check(digits, ["prepare"], out)
