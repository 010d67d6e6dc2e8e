"""A run can go on after damage to its checkpoints, on a full disk, and after a kill at any moment."""

import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipeline.errors import fix_hint
from pipeline.training.checkpointing import Checkpoints
from tests.fixtures.checkpoints import files, never, same, state_of, steps

_TIMEOUT_S = 120


# Damage


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    for step in (1, 2, 3):
        Checkpoints(folder, keep=3).save(step, state_of(step))
    return folder


def _flip(content: bytes, bit: int) -> bytes:
    bit %= 8 * len(content)
    return content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]


damages = st.one_of(
    st.integers(min_value=0).map(lambda bit: lambda content: _flip(content, bit)),
    st.integers(min_value=0).map(lambda size: lambda content: content[: size % len(content)]),
    st.binary(min_size=1, max_size=20).map(lambda tail: lambda content: content + tail),
    st.binary(max_size=40).map(lambda foreign: lambda content: foreign),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(damages, max_size=3))
@example([lambda content: b""])
@example([lambda content: content[:-1], lambda content: _flip(content, 0)])
def test_damaged_ones_are_passed_over_and_named(
    three: Path, tmp_path: Path, damage: list[Callable[[bytes], bytes]]
) -> None:
    """The newest `len(damage)` of three are damaged, each in its own way."""
    shutil.copytree(three, tmp_path, dirs_exist_ok=True)
    broken = files(tmp_path)[::-1][: len(damage)]
    for path, spoil in zip(broken, damage, strict=True):
        path.write_bytes(spoil(path.read_bytes()))
    lines: list[str] = []
    newest = Checkpoints(tmp_path, keep=3).load_latest(lines.append)
    if len(damage) == 3:
        assert newest is None
    else:
        assert newest is not None
        assert newest[0] == 3 - len(damage)
        assert same(newest[1], state_of(newest[0]))
    assert [line.split(":")[0] for line in lines] == [str(path) for path in broken]
    assert all("\n" not in line for line in lines)


class _Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harm",)


def _saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


_EXTERNAL_NETWORKS = {
    "another program's": b"GIF89a",
    "nothing": b"",
    "a state without a step": _saved({"x": 1}),
    "of another step": _saved({"step": 2, "state": {}}),
    "no state": _saved({"step": 9, "state": [1]}),
    "a list": _saved([1]),
    "pickled code": _saved({"step": 9, "state": {"x": _Harmful()}}),
}


@pytest.mark.parametrize("kind", _EXTERNAL_NETWORKS)
def test_foreign_files_with_a_right_digest_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Checkpoints(tmp_path).save(1, state_of(1))
    foreign = tmp_path / f"step-9.{hashlib.sha256(_EXTERNAL_NETWORKS[kind]).hexdigest()}.pt"
    foreign.write_bytes(_EXTERNAL_NETWORKS[kind])
    lines: list[str] = []
    newest = Checkpoints(tmp_path).load_latest(lines.append)
    assert newest is not None
    assert newest[0] == 1
    assert not (tmp_path / "harm").exists()
    (line,) = lines
    assert line.startswith(f"{foreign}: is n")
    assert line.endswith("; skipped")


def test_a_file_that_cannot_be_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Checkpoints(tmp_path).save(1, state_of(1))

    def fail(path: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "read_bytes", fail)
    lines: list[str] = []
    assert Checkpoints(tmp_path).load_latest(lines.append) is None
    assert lines == [f"{files(tmp_path)[0]}: cannot be read (Input/output error); skipped"]


def test_an_unsound_one_does_not_take_the_place_of_a_sound_one(tmp_path: Path) -> None:
    """Of 2 and a damaged 3 the run resumes from 2; after its next save 2 is still there to fall back to."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (2, 3):
        checkpoints.save(step, state_of(step))
    files(tmp_path)[-1].write_bytes(b"")
    resumed = Checkpoints(tmp_path, keep=2)
    resumed.load_latest(lambda line: None)
    resumed.save(4, state_of(4))
    assert steps(tmp_path) == [2, 4]


# Full disk


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_found_full_when_flushing_is_an_oserror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state_of(1))

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="step-000000002") as caught:
            checkpoints.save(2, state_of(2))
    assert caught.value.errno == number
    assert fix_hint(caught.value) is not None
    assert steps(tmp_path) == [1]
    assert checkpoints.load_latest(never) is not None
    checkpoints.save(2, state_of(2))


_LIMITED = """
import json, resource, sys
from pathlib import Path
from tests.fixtures.checkpoints import never, same, state_of
from pipeline.training.checkpointing import Checkpoints

folder = Path(sys.argv[1])
checkpoints = Checkpoints(folder)
for step in (1, 2):
    checkpoints.save(step, state_of(step))
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
try:
    checkpoints.save(3, state_of(3, numel=100_000))
except OSError as error:
    found, state = checkpoints.load_latest(never)
    print(json.dumps([error.errno, found, same(state, state_of(2)), len(list(folder.iterdir()))]))
checkpoints.save(3, state_of(3))
"""


@pytest.mark.slow
def test_a_file_that_outgrows_its_limit_leaves_the_earlier_ones(tmp_path: Path) -> None:
    """A real refusal in the middle of writing."""
    assert json.loads(_run(_LIMITED, tmp_path)) == [errno.EFBIG, 2, True, 2]
    assert steps(tmp_path) == [2, 3]


# Kills

# One process pays for importing torch; each run is a fork of it that is killed before its system call
# `number`, from 0, on anything in its folder. There it ends where no call is left.
_KILLED = """
import itertools, json, os, signal, sys
from pathlib import Path
from tests.fixtures.checkpoints import state_of
from pipeline.training.checkpointing import Checkpoints

root = Path(sys.argv[1])

def die_before_call(number, folder):
    calls = itertools.count()
    def hook(event, args):
        if event in ("open", "os.rename", "os.remove") and str(args[0]).startswith(str(folder)):
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)

for number in itertools.count():
    folder = root / f"{number:03d}"
    child = os.fork()
    if child == 0:
        checkpoints = Checkpoints(folder)
        for step in (1, 2, 3):
            checkpoints.save(step, state_of(step))
        die_before_call(number, folder)
        checkpoints.save(4, state_of(4))
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        break
print(number)
"""


@pytest.mark.slow
def test_a_kill_before_any_system_call_of_a_save(tmp_path: Path) -> None:
    """Opening, flushing, renaming, flushing the folder, removing the temporary file and an old one."""
    count = int(_run(_KILLED, tmp_path))
    assert count == 6
    for folder in files(tmp_path)[:count]:
        left = len(files(folder))
        number = int(folder.name)
        newest = Checkpoints(folder).load_latest(never)
        assert newest is not None
        assert newest[0] == (3 if number <= 2 else 4), number  # the third call is the rename
        assert same(newest[1], state_of(newest[0]))
        assert left <= 3
        Checkpoints(folder).save(5, state_of(5))
        assert steps(folder) == [newest[0], 5]


_LOOP = """
import itertools, os, sys
from pathlib import Path
from tests.fixtures.checkpoints import state_of
from pipeline.training.checkpointing import Checkpoints

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        checkpoints = Checkpoints(Path(line.strip()))
        for step in itertools.count(1):
            checkpoints.save(step, state_of(step, numel=500_000))
            os.write(1, f"{os.getpid()} {step}\\n".encode())
    os.waitpid(child, 0)
    os.write(1, b"killed\\n")
"""


@pytest.mark.slow
def test_kills_at_random_moments_lose_at_most_the_save_they_hit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with _start(_LOOP) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(10):
            folder = tmp_path / str(number)
            process.stdin.write(f"{folder}\n")
            process.stdin.flush()
            pid, announced = map(int, process.stdout.readline().split())
            time.sleep(rng.uniform(0, 0.05))
            os.kill(pid, 9)
            while (line := process.stdout.readline()) != "killed\n":
                announced = int(line.split()[1])
            newest = Checkpoints(folder).load_latest(never)
            assert newest is not None
            assert newest[0] in (announced, announced + 1)
            assert same(newest[1], state_of(newest[0], numel=500_000))
            assert len(files(folder)) <= 2 + 1
        process.stdin.close()
        assert process.wait(_TIMEOUT_S) == 0


def _run(script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env=_environment(), timeout=_TIMEOUT_S, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def _start(script: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
