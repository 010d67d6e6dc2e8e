"""Replace a file that other windows, programs and people write too."""

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from pipeline.artifacts.files import atomic_path
from pipeline.errors import InputError, explain_file_errors
from pipeline.locks import missing_locks

_LOCK_TIMEOUT_S = 30.0
_POLL_INTERVAL_S = 0.02


class FileState(NamedTuple):
    """State of a file. It differs after the file is written or replaced, or its mode changes."""

    device: int
    inode: int
    size: int
    mode: int
    modified_ns: int
    changed_ns: int


class ConcurrentEditError(Exception):
    """A program that holds no lock, such as an editor, has changed the file."""


@contextmanager
def exclusive(file: Path) -> Iterator[None]:
    """Lock `file` against other threads and processes that call this. The kernel releases the lock of a dead process.

    The lock is the empty file `.<name>.lock` in the folder of the file that `file` links to. It is not deleted.

    Raises:
        InputError: others keep the lock, or the file system has no locks; or it fails within the block, e.g. by a full
            disk or a read-only folder.
    """
    with explain_file_errors(), _locked(file):
        yield


def _locked(file: Path) -> AbstractContextManager[object]:
    target = file.resolve()
    lock = target.with_name(f".{target.name}.lock")
    try:
        # A soft lock would outlive a killed process, and every later window would wait for it.
        return FileLock(lock, timeout=_LOCK_TIMEOUT_S, poll_interval=_POLL_INTERVAL_S, fallback_to_soft=False).acquire()
    except Timeout:
        raise InputError(f"{file}: locked by another process for {_LOCK_TIMEOUT_S:g} s; try again") from None
    except OSError as error:
        raise missing_locks(error, file) or error from None


def file_state(file: Path) -> FileState | None:
    """Return the state of a file; None if it does not exist."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return FileState(
        status.st_dev, status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns
    )


@contextmanager
def replacing(file: Path, state: FileState | None) -> Iterator[Path]:
    """Yield a temporary path, whose content atomically replaces `file` on success, with the same mode.

    A link is followed: its target is replaced. On any exception the file does not change.

    Args:
        file: to replace.
        state: of the file when it was read; None if it did not exist.

    Raises:
        InputError: the file is read-only, or the disk is full.
        ConcurrentEditError: the file has changed since it was read.
    """
    target = file.resolve()
    # Root may write any file, so check the mode too.
    if state is not None and not (os.access(target, os.W_OK) and state.mode & 0o222):
        raise InputError(f"{file}: is read-only; run chmod u+w to allow writing")
    with atomic_path(target) as temporary:
        yield temporary
        if state is not None:
            temporary.chmod(stat.S_IMODE(state.mode))
        # Checked last, as no check is possible between this and the replacement.
        if file_state(file) != state:
            raise ConcurrentEditError
