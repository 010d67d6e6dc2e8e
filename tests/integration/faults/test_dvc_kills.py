"""`make repro` that is killed at random moments, again and again, ends in the result of an uninterrupted one by itself.

KILLS is how many times, KILL_SEED the seed of the moments; `make campaign-kills` takes 200. Each fresh clone is killed
until a run finishes, is compared, and the next one follows. One clone in four runs its stages. The others have the
cache of the uninterrupted run, from which DVC takes finished stages. Their runs take seconds, in most of which DVC
writes its own files; a kill does damage there.

That a kill inside a write does damage, and is repaired, is shown one by one in tests/unit/commands/test_repair.py, on a
real
DVC that is killed at a chosen byte.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.processes import processes_in_folder
from tests.fixtures.tiny_project import environment, hashes, write_tiny_project

_TIMEOUT_S = 1800  # of one run, beside others on the machine
_KILLS = int(os.environ.get("KILLS", "20"))
_ONE_IN = 4
_SEED = int(os.environ.get("KILL_SEED", "0"))
_MAKE = ["make", "--silent", "repro"]
_REPAIRED = "by a DVC that was killed; "

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(_TIMEOUT_S + 300 * _KILLS),
    pytest.mark.skipif(shutil.which("make") is None, reason="needs make"),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The project after one `make repro`, all committed, and how many seconds that took."""
    project = write_tiny_project(tmp_path_factory.mktemp("undisturbed"), train_size=0.15, steps=(6, 6))
    _install(project)
    start = time.monotonic()
    done = subprocess.run(_MAKE, cwd=project, env=environment(), capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    seconds = time.monotonic() - start
    author = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run(["git", "add", "--all", "."], cwd=project, check=True)
    subprocess.run(["git", *author, "commit", "-qm", "x"], cwd=project, check=True)
    return project, seconds


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
            # The last clone is left to finish.
            output, code = _run(project, rng if kills < _KILLS else None, longest=0 if cached else seconds / 2)
            finished, kills = code == 0, kills + (code is None)
            repairs += output.count(_REPAIRED)
            assert code in (0, None), f"seed {_SEED}, kill {kills}: not without a hand:\n{output}"
        assert hashes(project) == hashes(reference), f"seed {_SEED}, kill {kills}"
        changed = subprocess.run(["git", "status", "--porcelain"], cwd=project, capture_output=True, text=True)
        assert changed.stdout == "", f"seed {_SEED}, kill {kills}"
        shutil.rmtree(project)
    with capsys.disabled():
        took = f"{time.monotonic() - start:.0f} s; one run: {seconds:.0f} s"
        print(f"\nseed {_SEED}: {kills} kills of {clones} clones, {repairs} repairs, {took}")
    assert repairs > 0, "no kill left anything to repair"


def _clone(reference: Path, folder: Path, *, cached: bool) -> Path:
    """A fresh one; with DVC's cache it has nothing to run."""
    subprocess.run(["git", "clone", "-q", reference, folder], check=True)
    if cached:
        shutil.copytree(reference / ".dvc/cache", folder / ".dvc/cache")
    _install(folder)
    return folder


def _install(project: Path) -> None:
    """What `make setup` would do: an environment with all requirements, newer than they are."""
    (project / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name != ".installed":
            (project / ".venv" / path.name).symlink_to(path)
    (project / ".venv/.installed").touch()
    for name in ("pyproject.toml", "requirements.lock"):
        os.utime(project / name, (0, 0))


def _run(project: Path, rng: random.Random | None, *, longest: float) -> tuple[str, int | None]:
    """`make repro`, killed at a random moment if there is a generator.

    Returns:
        What it printed, and its exit code; None if it was killed.
    """
    log = project / ".git/output"
    with log.open("w") as output:
        make = subprocess.Popen(
            _MAKE, cwd=project, env=environment(), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        if rng is None:
            make.wait(timeout=_TIMEOUT_S)
        else:
            _wait_for_a_moment(make, project, rng, longest)
            killed = make.poll() is None
            _kill(make, project, dvc_alone=rng.random() < 0.5)
            make.wait(timeout=60)
            _wait_for_the_end_of_all(project)
            if killed:
                return log.read_text(), None
    return log.read_text(), make.returncode


def _wait_for_a_moment(make: "subprocess.Popen[bytes]", project: Path, rng: random.Random, longest: float) -> None:
    """While DVC writes its files, or right after; half of the moments are any within `longest` seconds, if not 0."""
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
    """Changes whenever DVC writes."""
    paths = [project / ".dvc/tmp/rwlock", project / "dvc.lock"]
    return [path.stat().st_mtime_ns for path in paths if path.exists()]


def _kill(make: "subprocess.Popen[bytes]", project: Path, *, dvc_alone: bool) -> None:
    """All that `make` started, as a power cut would, or DVC alone, as where memory is short."""
    running = [
        pid for pid, command in processes_in_folder(project).items() if "dvc" in (Path(part).name for part in command)
    ]
    if dvc_alone and running:
        os.kill(running[0], signal.SIGKILL)
    elif make.poll() is None:
        os.killpg(make.pid, signal.SIGKILL)


def _wait_for_the_end_of_all(project: Path) -> None:
    deadline = time.monotonic() + 30
    while left := processes_in_folder(project):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.02)
