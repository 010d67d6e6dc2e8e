"""Atomic writes, JSON with deterministic bytes, and memory-mapped NumPy files."""

import errno
import json
import math
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import DTypeLike, NDArray

from pipeline.errors import InputError, fix_hint, lacks_resources, short_reason


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; on success it replaces `path` in one step.

    On any exception the temporary file is removed and an earlier `path` is unchanged. The data
    are flushed to the disk before the rename, so a power cut leaves the old file or the new one.

    Raises:
        InputError: the disk or a quota is full.
        OSError: any other error of the system, with `errno`.
    """
    try:
        with _replacing(path) as temporary:
            yield temporary
    except OSError as error:
        # Any other error may be about a file that the caller reads in its block.
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
            error.filename = error.filename or str(path)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(str(fix_hint(error))) from error
        raise


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write `content` atomically, for callers that can continue without the file.

    Raises:
        OSError: any error of the system, including a full disk, with `errno` and `filename`.
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
    """Delete the temporary files and folders of killed processes in `folder`; those of running ones and others stay."""
    for leftover in folder.glob(".*.tmp"):
        pid = leftover.name.split(".")[-2]
        if not pid.isdecimal() or Path("/proc", pid).exists():
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
        try:
            _flush(temporary)
            temporary.replace(path)
            _flush(path.parent)
        except OSError as error:
            error.filename = error.filename or str(path)
            raise
    finally:
        temporary.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and user-space file systems flush no folder.
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write `value` with sorted keys, atomically. NaN and infinity become null."""
    write_text(path, json.dumps(_finite(value), indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def check_regular(path: Path, *, max_bytes: int | None = None) -> None:
    """Check that `path` is a regular file: a FIFO would block its reader, and a device or a link may have no end.

    Raises:
        InputError: it is missing, a link or something else, or larger than `max_bytes`.
    """
    try:
        status = path.lstat()
    except OSError as error:
        raise InputError(f"{path}: missing ({error.strerror}); copy the whole folder again") from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: not a regular file; remove it, or put the file itself here")
    if max_bytes is not None and status.st_size > max_bytes:
        raise InputError(f"{path}: {status.st_size:,} bytes, more than {max_bytes:,}; remove it")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        InputError: the file is missing or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: missing; run `dvc repro`") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not readable as JSON; delete it and run `dvc repro`") from None


def _finite(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {str(key): _finite(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_finite(inner) for inner in value]
        case _:
            return value


def _bytes(count: int) -> str:
    for divisor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= divisor:
            return f"{count / divisor:.2f} {unit}"
    return f"{count} B"


@contextmanager
def create_array(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> Iterator[np.memmap]:
    """Yield a writable memory map that becomes `path` when the block ends without an exception.

    The space is allocated first: a full disk raises here, instead of a bus error later.

    Raises:
        InputError: the disk has no room for the array.
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if size > free:
        raise InputError(f"{path}: needs {_bytes(size)} and the disk has {_bytes(free)} free; free some space")
    with atomic_path(path) as temporary:
        array = open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
        with temporary.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, array.offset + size)
        yield array
        array.flush()


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array atomically."""
    with create_array(path, array.shape, array.dtype) as out:
        out[...] = array


class ObjectArrayError(ValueError):
    """A .npy file holds Python objects, which cannot be memory-mapped and may run code."""


def map_array(path: Path) -> np.memmap:
    """Memory-map a .npy file of any type and shape read-only.

    Raises:
        FileNotFoundError: there is no such file.
        ObjectArrayError: it holds Python objects; a ValueError with the reason in a few words.
        ValueError: it is not a .npy file, with the reason in a few words.
    """
    if path.exists() and not path.is_file():
        raise ValueError("not a regular file")  # a FIFO would block its reader
    try:
        with path.open("rb") as file:
            start = file.read(6)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None
    # NumPy takes other bytes for a pickle, and advises to load it.
    if start.startswith(b"PK"):
        raise ValueError("an .npz archive, not a .npy file")
    if start != b"\x93NUMPY":
        raise ValueError("not a valid .npy file (it is cut or overwritten)")
    try:
        array: np.memmap = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:
        # NumPy passes on errors of Python's own parser, which reads the header.
        if lacks_resources(error):
            raise
        # It has no class of its own in NumPy.
        if "Python objects in dtype" in str(error):
            raise ObjectArrayError("holds Python objects, not numbers or text") from None
        raise ValueError(f"not a valid .npy file ({short_reason(error)})") from None
    return array


def open_array(path: Path, *, dtype: DTypeLike, ndim: int, rows: int | None = None) -> np.memmap:
    """Memory-map a .npy file read-only and check its type and shape.

    Raises:
        InputError: the file is missing, truncated, not an array file, or of another type, rank or length.
    """
    try:
        array = map_array(path)
    except FileNotFoundError:
        raise InputError(f"{path}: missing; run `dvc repro`") from None
    except ValueError as error:
        raise InputError(f"{path}: {error}; delete it and run `dvc repro`") from None
    if array.dtype != np.dtype(dtype) or array.ndim != ndim:
        raise InputError(
            f"{path}: holds {array.dtype} of shape {array.shape}, expected {np.dtype(dtype)} of {ndim} "
            f"dimension{'s' if ndim > 1 else ''}; run `dvc repro`"
        )
    if rows is not None and len(array) != rows:
        raise InputError(f"{path}: has {len(array)} rows, its manifest {rows}; run `dvc repro`")
    return array
