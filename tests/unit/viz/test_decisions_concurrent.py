"""Threads and processes that write at the same time lose nothing, and a killed one leaves a valid file."""

import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.artifacts.overrides import COLUMNS, read_overrides
from pipeline.errors import InputError
from viz import atomic_write
from viz.decisions import Decisions, Image

_A = Image("train/a.png", "aa")
_HEADER = ",".join(COLUMNS) + "\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "overrides.csv"
    path.parent.mkdir()
    path.write_text(_HEADER)
    return path


def _decided(file: Path) -> set[str]:
    return {line.path for line in read_overrides(file)}


def test_a_lock_that_is_not_released_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_write, "_LOCK_TIMEOUT_S", 0.1)
    errors: list[str] = []

    def decide() -> None:
        try:
            Decisions(file).decide([_A], "drop", "")
        except InputError as error:
            errors.append(str(error))

    with atomic_write.exclusive(file):
        window = threading.Thread(target=decide)
        window.start()
        window.join()
    assert errors == [f"{file}: locked by another process for 0.1 s; try again"]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(code: int, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(InputError) as raised:
        Decisions(file).decide([_A], "drop", "")
    assert raised.value.key == str(file)
    assert os.strerror(code) in str(raised.value)
    assert file.read_text() == _HEADER


def test_threads_that_share_an_object_lose_nothing(file: Path) -> None:
    chosen = Decisions(file)
    images = [Image(f"{number}.png", "00") for number in range(40)]

    def decide(part: int) -> None:
        for image in images[part::4]:
            chosen.decide([image], "drop", "")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(decide, range(4)))
    assert _decided(file) == {image.path for image in images}
    while chosen.undo() is not None:
        pass
    assert file.read_text() == _HEADER


_N_DECISIONS = 60
_WRITER = """
import sys
from pathlib import Path
from viz import decisions as module
from viz.decisions import Decisions, Image

module._now = lambda: "2026-01-01T00:00:00+00:00"
decisions = Decisions(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    decisions.decide([Image(f"{sys.argv[2]}-{number}.png", "00")], "drop", "")
    print(number, flush=True)
"""


def _writer(file: Path, name: str, n: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WRITER, str(file), name, str(n)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_write_at_once_lose_nothing(file: Path) -> None:
    writers = [_writer(file, name, 25) for name in "abcd"]
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    assert _decided(file) == {f"{name}-{n}.png" for name in "abcd" for n in range(25)}


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_process_leaves_a_valid_file_with_its_decisions(file: Path, sent: signal.Signals) -> None:
    rng = random.Random(0)
    acknowledged: set[str] = set()
    for attempt in range(3):
        with _writer(file, str(attempt), 10_000) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline()
            time.sleep(rng.uniform(0, 0.1))
            writer.send_signal(sent)
            numbers = [first, *writer.stdout.read().splitlines()]
        assert writer.returncode == -sent
        acknowledged |= {f"{attempt}-{int(number)}.png" for number in numbers}
        decided = _decided(file)
        assert acknowledged <= decided
        # The process may be killed between writing the last decision and printing it.
        assert len(decided - acknowledged) <= attempt + 1
    Decisions(file).decide([_A], "keep", "")
    assert {path.name for path in file.parent.iterdir()} == {file.name, ".overrides.csv.lock"}


@pytest.mark.slow
def test_decisions_sent_again_after_kills_give_the_same_bytes(file: Path, tmp_path: Path) -> None:
    """As a page that got no answer sends them again."""
    whole, rng = tmp_path / "whole.csv", random.Random(1)
    whole.write_text(_HEADER)
    _writer(whole, "a", _N_DECISIONS).communicate(timeout=60)
    for sent in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        with _writer(file, "a", _N_DECISIONS) as writer:
            assert writer.stdout is not None
            for _ in range(rng.randint(1, _N_DECISIONS // 4)):
                writer.stdout.readline()
            writer.send_signal(sent)
    _writer(file, "a", _N_DECISIONS).communicate(timeout=60)
    assert file.read_bytes() == whole.read_bytes()
