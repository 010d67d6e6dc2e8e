"""Lock files, which the kernel frees when their process dies."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from pipeline.errors import InputError

_LOCK_GRACE_S = 5.0
# Of some network and user-space file systems.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def file_lock(path: Path, name: str, *, remove: bool = False) -> Iterator[None]:
    """Hold the lock file `path`; the kernel frees it when the process dies.

    Args:
        remove: whether to remove the file at the end, for folders whose files go elsewhere.

    Raises:
        InputError: another process holds it, and the message calls it a run of `name`; or there are no locks here.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path, name, removed=remove) as file:
        try:
            file.truncate(0)
            # Unbuffered: what a full disk refuses must not be written again when the file is closed.
            os.write(file.fileno(), str(os.getpid()).encode())
        except OSError as error:
            error.filename = str(path)  # the system names none
            raise
        try:
            yield
        finally:
            if remove:
                path.unlink(missing_ok=True)


def _locked(path: Path, name: str, *, removed: bool) -> IO[str]:
    """Open a lock file and take its lock.

    Args:
        removed: whether processes remove it at their end.
    """
    while True:
        file = path.open("a+", encoding="utf-8")
        if not _try_lock(file, within_s=_LOCK_GRACE_S):
            with file:
                file.seek(0)
                holder = file.read().strip() or "unknown"
            raise InputError(f"{name}: already running as process {holder}; wait for it or end it")
        if not removed:
            return file
        # The previous holder may have removed the file after this process opened it.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


def _try_lock(file: IO[str], *, within_s: float) -> bool:
    """Try to take the lock; processes that were just killed may still hold it for a moment."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        except OSError as error:
            file.close()
            raise missing_locks(error, file.name) or error from None
        else:
            return True


def missing_locks(error: OSError, file: str | Path) -> InputError | None:
    """Return the error that names `file` if its file system has no locks; None for other errors."""
    if error.errno not in _NO_LOCKS:
        return None
    return InputError(f"{file}: the file system has no locks ({error.strerror}); choose a folder on another one")
