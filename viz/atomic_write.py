"""Replacing a file that other windows, other programs and people write too."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from pipeline.artifacts.files import atomic_path
from pipeline.errors import InputError, fix_hint

_LOCK_TIMEOUT_S = 30.0
_POLL_INTERVAL_S = 0.02


class FileState(NamedTuple):
    """Of a file as it was found; differs whenever it has been written, replaced or given another mode."""

    device: int
    inode: int
    size: int
    mode: int
    modified_ns: int
    changed_ns: int


class ConcurrentEditError(Exception):
    """Somebody who holds no lock, such as an editor, has changed the file."""


@contextmanager
def exclusive(file: Path) -> Iterator[None]:
    """Keep out all other threads and processes that come here for `file`; the kernel lets go when a process dies.

    The lock is `.<name>.lock` next to the file that `file` links to. It remains there, empty.

    Raises:
        InputError: others keep the lock; or the file system refuses something within the block: a full
            disk, a folder that may not be written.
    """
    target = file.resolve()
    try:
        with FileLock(
            target.with_name(f".{target.name}.lock"), timeout=_LOCK_TIMEOUT_S, poll_interval=_POLL_INTERVAL_S
        ):
            yield
    except Timeout:
        raise InputError(f"{file}: others have been writing it for {_LOCK_TIMEOUT_S:g} s; try again") from None
    except OSError as error:
        hint = fix_hint(error)
        if hint is None:
            raise
        raise InputError(hint) from error


def file_state(file: Path) -> FileState | None:
    """None while there is no such file."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return FileState(
        status.st_dev, status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns
    )


@contextmanager
def replacing(file: Path, state: FileState | None) -> Iterator[Path]:
    """Yield a temporary path; on success its content takes the place of `file`, with the same mode, at once.

    What `file` links to is replaced, not the link. On any exception the file stays as it was.

    Args:
        state: of the file as it was read.

    Raises:
        InputError: the file is read-only, or the disk is full.
        ConcurrentEditError: the file is no longer the one that was read.
    """
    target = file.resolve()
    # The administrator may write to any file; that nobody should is said by the mode alone.
    if state is not None and not (os.access(target, os.W_OK) and state.mode & 0o222):
        raise InputError(f"{file}: is read-only; allow writing (chmod u+w), or leave it as it is")
    with atomic_path(target) as temporary:
        yield temporary
        if state is not None:
            temporary.chmod(stat.S_IMODE(state.mode))
        # Last, for between here and the replacement nobody can look.
        if file_state(file) != state:
            raise ConcurrentEditError
