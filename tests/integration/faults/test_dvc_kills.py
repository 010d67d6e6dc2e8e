"""`make repro` that is killed at random moments ends in the result of an uninterrupted run, without manual repair.

KILLS is the number of kills, KILL_SEED the seed of the moments; `make campaign-kills` sets 200. Each fresh clone is
killed until a run finishes, and its result is compared; then the next clone follows. Without KILLS the commands of the
recipe are forks, which start in milliseconds.

One clone in four runs its stages. The others have the cache of the uninterrupted run, from which DVC takes finished
stages. Their runs take seconds, mostly while DVC writes its own files, where a kill does damage. A quarter of the kills
is SIGTERM, after which a process may still write.

tests/unit/commands/test_repair.py shows single cases: a kill inside a write of a real DVC, at a selected byte, does
damage and is repaired.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.artifacts.files import read_json
from pipeline.processes import processes_in_folder
from tests.fixtures.forked import Process, start_forked
from tests.fixtures.tiny_project import environment, hashes, reproduced

__all__ = ["reproduced"]

_TIMEOUT_S = 1800  # for one run, while other jobs use the machine
_KILLS = int(os.environ.get("KILLS", "20"))
_ONE_IN = 4
_TERMINATED = 0.25  # share of the kills that are SIGTERM
_SEED = int(os.environ.get("KILL_SEED", "0"))
_FORKED = [sys.executable, "-m", "tests.fixtures.make_repro"]
_MAKE = ["make", "--silent", "repro"]
_NEW_INTERPRETERS = "KILLS" in os.environ
_REPAIRED = "by a DVC that was killed; "

pytestmark = [pytest.mark.slow, pytest.mark.timeout(_TIMEOUT_S + 300 * _KILLS)]


@pytest.fixture(scope="module")
def undisturbed(reproduced: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The project with its results and their dvc.lock, committed, and the duration of its stages in seconds."""
    project = tmp_path_factory.mktemp("undisturbed") / "project"
    shutil.copytree(reproduced, project)
    author = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run(["git", "add", "--all", "."], cwd=project, check=True)
    subprocess.run(["git", *author, "commit", "-qm", "x"], cwd=project, check=True)
    records = (project / ".work/resources").iterdir()
    return project, sum(read_json(record)["wall_s"] for record in records)


def test_random_kills_end_in_the_uninterrupted_result(
    tmp_path: Path, undisturbed: tuple[Path, float], capsys: pytest.CaptureFixture[str]
) -> None:
    reference, seconds = undisturbed
    rng, kills, repairs, clones = random.Random(_SEED), 0, 0, 0
    start = time.monotonic()
    while kills < _KILLS:
        cached = clones % _ONE_IN > 0
        project, clones, finished = _clone(reference, tmp_path / f"clone{clones}", cached=cached), clones + 1, False
        while not finished:
            # The last clone finishes without a kill.
            output, code = _run(project, rng if kills < _KILLS else None, longest=0 if cached else seconds / 2)
            finished, kills = code == 0, kills + (code is None)
            repairs += output.count(_REPAIRED)
            assert code in (0, None), f"seed {_SEED}, kill {kills}: needs a manual repair:\n{output}"
        assert hashes(project) == hashes(reference), f"seed {_SEED}, kill {kills}"
        changed = subprocess.run(["git", "status", "--porcelain"], cwd=project, capture_output=True, text=True)
        assert changed.stdout == "", f"seed {_SEED}, kill {kills}"
        shutil.rmtree(project)
    with capsys.disabled():
        duration = f"{time.monotonic() - start:.0f} s; one run: {seconds:.0f} s"
        print(f"\nseed {_SEED}: {kills} kills of {clones} clones, {repairs} repairs, {duration}")
    # Few kills may all miss the writes of the lock files; test_repair.py damages them at chosen bytes.
    assert repairs > 0 or _KILLS < 200, "no kill did damage"


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_with_new_interpreters_ends_in_the_same_result(tmp_path: Path, undisturbed: tuple[Path, float]) -> None:
    """Forks share a hash seed and imported modules; the bytes do not depend on them."""
    reference, _ = undisturbed
    project = _clone(reference, tmp_path / "clone", cached=False)
    if not _NEW_INTERPRETERS:
        _install(project)
    environ = {**environment(), "PYTHONHASHSEED": "1"}
    done = subprocess.run(_MAKE, cwd=project, env=environ, capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert hashes(project) == hashes(reference)
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=project, capture_output=True, text=True)
    assert changed.stdout == ""


def _clone(reference: Path, folder: Path, *, cached: bool) -> Path:
    """Make a fresh clone; with the cache of DVC it has no stage to run."""
    subprocess.run(["git", "clone", "-q", reference, folder], check=True)
    if cached:
        shutil.copytree(reference / ".dvc/cache", folder / ".dvc/cache")
    if _NEW_INTERPRETERS:
        _install(folder)
    return folder


def _install(project: Path) -> None:
    """Make the environment that `make setup` makes: with all requirements, and newer than their files."""
    (project / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name != ".installed":
            (project / ".venv" / path.name).symlink_to(path)
    (project / ".venv/.installed").touch()
    for name in ("pyproject.toml", "requirements.lock"):
        os.utime(project / name, (0, 0))


def _run(project: Path, rng: random.Random | None, *, longest: float) -> tuple[str, int | None]:
    """Run `make repro`, and kill it at a random moment if `rng` is given.

    Returns:
        The output, and the exit code; None if it was killed.
    """
    log = project / ".git/output"
    log.unlink(missing_ok=True)
    make = _start(project, log)
    if rng is None:
        make.wait(timeout=_TIMEOUT_S)
    else:
        _wait_for_a_moment(make, project, rng, longest)
        killed = make.poll() is None
        sent = signal.SIGTERM if rng.random() < _TERMINATED else signal.SIGKILL
        _kill(make, project, sent, dvc_alone=rng.random() < 0.5)
        make.wait(timeout=60)
        _wait_for_the_end_of_all(project)
        if killed and make.returncode:
            return log.read_text(), None
    return log.read_text(), make.returncode


def _start(project: Path, log: Path) -> Process:
    if not _NEW_INTERPRETERS:
        return start_forked(_FORKED, cwd=project, environ=environment(), output=log)
    with log.open("w") as output:
        return subprocess.Popen(
            _MAKE, cwd=project, env=environment(), stdout=output, stderr=output, text=True, start_new_session=True
        )


def _wait_for_a_moment(make: Process, project: Path, rng: random.Random, longest: float) -> None:
    """Wait for a moment at which DVC writes its files, or shortly after it.

    If `longest` is not 0, half of the moments are uniform within `longest` seconds.
    """
    any_time, moment, writes, after = (
        rng.random() < 0.5 and longest > 0,
        rng.uniform(0, longest),
        rng.randint(1, 30),
        rng.uniform(0, 0.1),
    )
    start, seen = time.monotonic(), _written(project)
    while make.poll() is None and (time.monotonic() < start + moment if any_time else writes):
        time.sleep(0.002)
        if (now := _written(project)) != seen:
            seen, writes = now, writes - 1
    time.sleep(0 if any_time else after)


def _written(project: Path) -> list[int]:
    """Return a value that changes whenever DVC writes, which includes git's index."""
    paths = [project / ".dvc/tmp/rwlock", project / "dvc.lock", *(project / ".git").glob("index*")]
    times = []
    for path in paths:
        with suppress(FileNotFoundError):  # git has removed its index.lock
            times.append(path.stat().st_mtime_ns)
    return times


def _kill(make: Process, project: Path, sent: signal.Signals, *, dvc_alone: bool) -> None:
    """Send a signal to all descendants of `make`, or to DVC alone.

    SIGKILL comes to all in a power cut, and to one from the out-of-memory killer. SIGTERM comes from a batch system.
    """
    running = [
        pid for pid, command in processes_in_folder(project).items() if "dvc" in (Path(part).name for part in command)
    ]
    if dvc_alone and running:
        os.kill(running[0], sent)
    elif make.poll() is None:
        os.killpg(make.pid, sent)


def _wait_for_the_end_of_all(project: Path) -> None:
    deadline = time.monotonic() + 30
    while left := processes_in_folder(project):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.02)
