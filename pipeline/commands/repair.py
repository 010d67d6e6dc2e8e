"""`python -m pipeline repair`: repair dvc.lock and .dvc/tmp/rwlock after DVC was killed while it wrote them.

Unfinished copies of outputs below data/ are removed, and so is git's index.lock. Prints a line for each file. No
finished stage is lost.
"""

import argparse
import fcntl
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipeline.artifacts.files import write_bytes
from pipeline.commands import command_parser
from pipeline.errors import InputError
from pipeline.paths import WorkPaths
from pipeline.processes import git_output, process_started_at, processes_in_folder

# DVC writes both files in place. Killed or interrupted while it writes, it leaves them empty or cut short, and refuses
# to run. An older dvc.lock loses no finished stage: DVC enters each stage in its run cache before it writes dvc.lock,
# and the next `dvc repro` restores the outputs from there. Killed while it copies outputs from its cache, it leaves a
# copy under a temporary name next to them. With `core.autostage` it writes git's index, and git and DVC refuse to write
# the index while there is an index.lock. This module needs only `dvc` and git.
_RWLOCK = Path(".dvc/tmp/rwlock")
_LOCK = Path("dvc.lock")
# The names of dvc_objects.fs.utils.tmp_fname.
_UNFINISHED_COPY = re.compile(r"\.[A-Za-z0-9_-]{22}\.tmp")
# Equal to the time that DVC waits for its lock.
_LOCK_TIMEOUT_S = 3.0
# An index is written within milliseconds. Younger locks may be of a process that cannot be seen, as another user's.
_INDEX_LOCK_AGE_S = 3.0
# The start of a process is known to a second; a file system's clock may lag.
_CLOCK_ERROR_S = 2.0
# These run as long as the computer and write no index.
_GIT_DAEMONS = {"fsmonitor--daemon", "credential-cache--daemon", "daemon"}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    return command_parser("repair", __doc__)


def main(argv: Sequence[str]) -> int:
    """Repair the damaged files.

    Returns:
        0.

    Raises:
        InputError: the working folder is not the project's, or a file is damaged and DVC still runs.
    """
    make_parser().parse_args(argv)
    project = Path.cwd()
    if not (project / "dvc.yaml").is_file():
        raise InputError(f"{project}: not the project's folder; cd to the one with dvc.yaml")
    for repair in repair_dvc_files(project, WorkPaths()):
        print(f"{repair.file}: {repair.done}")
    return 0


@dataclass(frozen=True, kw_only=True)
class Repair:
    """A repaired file.

    Attributes:
        file: relative to the project.
        done: the repair, in words.
    """

    file: Path
    done: str


def repair_dvc_files(project: Path, work: WorkPaths) -> list[Repair]:
    """Repair dvc.lock and DVC's rwlock if they are damaged; remove unfinished copies below data/ and git's index.lock.

    Readable files stay as they are. So do copies while DVC runs, and index.lock while DVC or git runs, which may be
    writing them. Waits until an index.lock is `_INDEX_LOCK_AGE_S` old.

    Args:
        project: the folder with dvc.yaml.
        work: the folder in which stages keep a copy of dvc.lock.

    Raises:
        InputError: a file is damaged and DVC still runs in the project, or dvc.lock has conflicts of a git merge.
    """
    # A project of `init` uses the .dvc of a repository around it.
    root = next((folder for folder in (project, *project.parents) if (folder / ".dvc").is_dir()), None)
    if root is None:
        return []
    rwlock = Path(os.path.relpath(root / _RWLOCK, project))
    index_locks = _old_index_locks(project)
    with _dvc_lock_held(root / ".dvc/tmp/lock"):
        running = _running_dvc(root)
        damaged = [] if _is_usable_rwlock(root / _RWLOCK, running) else [rwlock]
        damaged += [] if is_readable_lock(project / _LOCK) else [_LOCK]
        if damaged and running:
            raise InputError(f"{damaged[0]}: damaged, and DVC runs as process {running[0]}; end it and try again")
        repairs = [
            _remove_rwlock(project, path) if path == rwlock else _replace_lock(project, work) for path in damaged
        ]
        if running:
            return repairs
        return [*repairs, *_remove_unfinished_copies(project), *_remove_index_locks(project, index_locks)]


def is_readable_lock(lock: Path) -> bool:
    """Return whether DVC can read a dvc.lock to its end; True if there is no file."""
    # Imported here: takes a third of a second.
    from dvc.exceptions import DvcException
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc.utils.strictyaml import load

    if not lock.exists():
        return True
    # DVC ends the file with a newline. Without it the last value may be cut short, which is valid YAML.
    if not lock.read_bytes().endswith(b"\n"):
        return False
    try:
        load(str(lock), COMPILED_LOCKFILE_SCHEMA)
    except DvcException:
        return False
    except Exception:  # noqa: BLE001 - DVC passes on the errors of its parsers, of any class
        return False
    return True


def _is_usable_rwlock(path: Path, running: Collection[int] = ()) -> bool:
    """Return whether DVC can read its rwlock, and would not wait in vain for a process in it.

    A process that is younger than the file has the number of a DVC that was killed, and a zombie is one. A program that
    uses DVC as a library has any name: if one in the file is alive, DVC waits for it, and the file stays.

    Args:
        running: processes that are DVC.
    """
    try:
        with path.open("rb") as file:
            content, latest = file.read(), os.fstat(file.fileno()).st_mtime + _CLOCK_ERROR_S
    except FileNotFoundError:
        return True
    try:
        locks = json.loads(content)
        readers = [reader for several in locks.get("read", {}).values() for reader in several]
        pids = {int(holder["pid"]) for holder in (*locks.get("write", {}).values(), *readers)}
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
        return False
    if max(pids, default=0) >= 2**31:
        return False  # no number of a process: DVC fails
    # DVC ignores those without an entry in /proc.
    named = [pid for pid in pids if Path("/proc", str(pid)).exists()]
    return not named or any(pid in running or _started_before(pid, latest) for pid in named)


def _started_before(pid: int, time: float) -> bool:
    """Return whether a process is alive and was started before `time`; True for one that may not be looked at."""
    try:
        started = process_started_at(pid)
    except PermissionError:  # of another user, where /proc hides their files
        return True
    return started is not None and started <= time


def _remove_rwlock(project: Path, path: Path) -> Repair:
    (project / path).unlink()
    return Repair(file=path, done="left by a DVC that was killed; removed, since no DVC is running here")


def _replace_lock(project: Path, work: WorkPaths) -> Repair:
    """Replace dvc.lock by the newest complete copy: that of a stage, or that of HEAD if it was committed later.

    Without a copy the file is removed, and DVC writes a new one.
    """
    lock, copy = project / _LOCK, project / work.dvc_lock
    content = lock.read_bytes()
    if b"\n<<<<<<< " in b"\n" + content:
        raise InputError(
            f"{_LOCK}: has the conflicts of a git merge; take one side by `git checkout --ours {_LOCK}` or --theirs"
        )
    write_bytes(project / work.damaged_dvc_lock, content)
    return Repair(
        file=_LOCK,
        done=f"cut short by a DVC that was killed; replaced by {_restore(lock, copy, label=str(work.dvc_lock))}; DVC's "
        "cache has the stages that finished since",
    )


def _remove_unfinished_copies(project: Path) -> list[Repair]:
    """Remove what DVC was copying when it was killed: outputs lie up to four folders deep."""
    copies = [
        path.relative_to(project)
        for pattern in (".*.tmp", "*/.*.tmp", "*/*/.*.tmp", "*/*/*/.*.tmp")
        for path in sorted((project / "data").glob(pattern))
        if _UNFINISHED_COPY.fullmatch(path.name)
    ]
    for copy in copies:
        if (project / copy).is_dir() and not (project / copy).is_symlink():
            shutil.rmtree(project / copy)
        else:
            (project / copy).unlink()
    return [Repair(file=copy, done="an unfinished copy of a DVC that was killed; removed") for copy in copies]


def _old_index_locks(project: Path) -> list[Path]:
    """Return git's index.lock if it is old enough to be left by a killed process; waits for that age."""
    # A worktree has its own, elsewhere.
    name = os.fsdecode(git_output(project, "rev-parse", "--git-path", "index.lock") or b"").rstrip("\n")
    path = project / name
    deadline, first = time.monotonic() + _INDEX_LOCK_AGE_S, _version(path)
    while name and (version := _version(path)):
        # Its time may lie in the future, e.g. where another computer wrote it.
        is_unchanged = time.monotonic() >= deadline and version == first
        if is_unchanged or time.time() - version.modified_ns / 1e9 >= _INDEX_LOCK_AGE_S:
            return [path]
        if time.monotonic() >= deadline or _git_runs(project):
            break
        time.sleep(0.05)
    return []


class _Version(NamedTuple):
    inode: int
    modified_ns: int


def _version(path: Path) -> _Version | None:
    """Return what differs after a file is written or replaced; None without a file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return _Version(status.st_ino, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


def _git_runs(project: Path) -> bool:
    """Return whether a git runs in the repository of the project."""
    top = os.fsdecode(git_output(project, "rev-parse", "--show-toplevel") or os.fsencode(project)).rstrip("\n")
    return any(
        Path(command[0]).name == "git" and _GIT_DAEMONS.isdisjoint(command)
        for command in processes_in_folder(Path(top)).values()
    )


def _remove_index_locks(project: Path, paths: list[Path]) -> list[Repair]:
    if not paths or _git_runs(project):
        return []
    for path in paths:
        path.unlink(missing_ok=True)
    done = "left by a git or by a DVC that was killed; removed, since neither runs here"
    return [Repair(file=Path(os.path.relpath(path, project)), done=done) for path in paths]


def _restore(lock: Path, copy: Path, *, label: str) -> str:
    """Replace `lock` by the newest complete copy, or remove it without one.

    Args:
        lock: the damaged file.
        copy: of the last stage; may be missing.
        label: name of `copy` in messages.

    Returns:
        The source of the replacement, in words.
    """
    copies = [("that of the last commit", committed_lock(lock.parent))]
    if copy.exists():
        of_stage = (f"the copy that the last stage kept ({label})", copy.read_bytes())
        is_older = copy.stat().st_mtime < _committed_at(lock.parent)
        copies.insert(1 if is_older else 0, of_stage)  # the newest first
    for source, content in copies:
        if content is not None:
            write_bytes(lock, content)
            if is_readable_lock(lock):
                return source
    lock.unlink()
    return "a new one, since there is no complete copy"


def committed_lock(project: Path) -> bytes | None:
    """Return the content of dvc.lock in git's HEAD; None without the file or without git."""
    return git_output(project, "show", f"HEAD:./{_LOCK}")


def _committed_at(project: Path) -> int:
    """Return when HEAD's dvc.lock was committed, in seconds since 1970; 0 without one."""
    return int(git_output(project, "log", "-1", "--format=%ct", "--", str(_LOCK)) or 0)


def _running_dvc(project: Path) -> list[int]:
    """Return the pids of DVC in the project, without those that only send its statistics."""
    return [
        pid
        for pid, command in processes_in_folder(project).items()
        if any(Path(part).name == "dvc" for part in command[:5]) and "daemon" not in command
    ]


@contextmanager
def _dvc_lock_held(path: Path) -> Iterator[None]:
    """Hold the lock that DVC holds while it reads or writes its files; it releases it while a stage runs."""
    path.parent.mkdir(exist_ok=True)
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    with path.open("a+b") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InputError(f"{path}: another DVC holds this lock; wait for it or end it") from None
                time.sleep(0.05)
        yield
