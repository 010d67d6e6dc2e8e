"""NumPy files, always memory-mapped: larger arrays than memory are no special case."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import DTypeLike, NDArray

from pipeline.artifacts.atomic import atomic_path
from pipeline.errors import InputError


@contextmanager
def create_array(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> Iterator[np.memmap]:
    """Yield a writable memory map that becomes `path` when the block ends without an exception.

    The space is allocated first, so a full disk is met here and not by a bus error later.

    Raises:
        InputError: the disk has no room for the array.
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if size > free:
        raise InputError(
            f"{path}: needs {size / 1e9:.2f} GB and the disk has {free / 1e9:.2f} GB free; free some space"
        )
    with atomic_path(path) as temporary:
        array = open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
        with temporary.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, array.offset + size)
        yield array
        array.flush()


def write_array(path: Path, array: NDArray[Any]) -> None:
    """Write a whole array, atomically."""
    with create_array(path, array.shape, array.dtype) as out:
        out[...] = array


def open_array(path: Path, *, dtype: DTypeLike, ndim: int, rows: int | None = None) -> np.memmap:
    """Map a .npy file read-only and check it against what the caller expects.

    Raises:
        InputError: missing, truncated, not an array file, or of another type, rank or length.
    """
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path}: missing; run `dvc repro`") from None
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise InputError(f"{path}: not a sound .npy file ({error}); delete it and run `dvc repro`") from None
    if not isinstance(array, np.memmap):
        array.close()
        raise InputError(f"{path}: an .npz archive, not a .npy file; delete it and run `dvc repro`")
    if array.dtype != np.dtype(dtype) or array.ndim != ndim:
        raise InputError(
            f"{path}: holds {array.dtype} of shape {array.shape}, expected {np.dtype(dtype)} of {ndim} dimensions"
        )
    if rows is not None and len(array) != rows:
        raise InputError(f"{path}: has {len(array)} rows, its manifest {rows}; run `dvc repro`")
    return array
