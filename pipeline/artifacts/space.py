"""Check that a folder can be written and has room, before a stage computes for hours."""

import errno
import os
from pathlib import Path

from pipeline.errors import InputError

MIN_BYTES = 1 << 20
"""Room that every stage needs for tables, logs and records."""


def check_space(folder: Path, n_bytes: int = 0) -> None:
    """Check that a file of `n_bytes`, or of `MIN_BYTES` if that is more, can be made in `folder`, and remove it.

    A number of free bytes would say nothing of quotas, limits on file sizes, and rights.

    Raises:
        InputError: with the bytes and the fix; nothing is left behind.
    """
    probe, n_bytes = folder / f".space.{os.getpid()}.tmp", max(n_bytes, MIN_BYTES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with probe.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, n_bytes)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            # `fix_hint` has the words for rights and for files in place of folders.
            error.filename = str(folder)
            raise
        raise InputError(
            f"{folder}: {error.strerror}: the stage will write {n_bytes / 1e6:,.1f} MB here; free some space or raise "
            "the limit, and run the same command again"
        ) from None
