"""Check that a folder can be written and has room, and the limit on memory, before a stage computes for hours."""

import errno
import os
import resource
from pathlib import Path

from pipeline.errors import InputError, MachineError

MIN_BYTES = 1 << 20
"""Room that every stage needs for tables, logs and records."""


MIN_MEMORY = 512 << 20
"""Address space that every stage needs above that of its libraries."""


def check_memory_limit() -> None:
    """Check that a limit on the address space (`ulimit -v`, RLIMIT_AS) leaves `MIN_MEMORY` to this process.

    With less, libraries do not fail: OpenBLAS asks for its 32 MB again for ever, and OpenMP ends the process.

    Raises:
        MachineError: with the bytes and the fix.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if limit - used < MIN_MEMORY:
        raise MachineError(
            f"ulimit -v: {limit >> 20:,} MiB of memory, of which the libraries take {used >> 20:,}; leave a stage "
            f"{MIN_MEMORY >> 20} MiB or more"
        )


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
