"""Files that are either complete or absent."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import InputError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success its content appears there at once.

    On any exception the temporary file is removed and an earlier `path` stays as it was. The data
    reach the disk before the name does, so a power cut leaves the old file or the new one.

    Raises:
        InputError: the disk is full.
    """
    try:
        with _replacing(path) as temporary:
            yield temporary
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(f"{path}: the disk is full; free some space and run the same command again") from error
        raise


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write `content`, atomically, for callers that can do without the file.

    Raises:
        OSError: as the system gave it, a full disk too; `errno` and `filename` say what and where.
    """
    try:
        with _replacing(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files and folders of killed processes in `folder`; living ones keep theirs."""
    for leftover in folder.glob(".*.tmp"):
        pid = leftover.name.split(".")[-2]
        if pid.isdigit() and Path("/proc", pid).exists():
            continue
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
        _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
