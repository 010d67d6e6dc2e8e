"""Tasks as bytes; a memory-mapped array travels as its path and the place of its rows."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError


def dumps(value: object) -> bytes:
    """A pickle in which memory-mapped arrays are paths and places."""
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Memory-mapped arrays by path and place."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, np.memmap) or not value.flags.c_contiguous:
            return NotImplemented
        root = value
        while isinstance(root.base, np.memmap):
            root = root.base
        offset = root.offset + value.ctypes.data - root.ctypes.data
        return _rows_of_file, (str(value.filename), value.dtype.str, offset, value.shape)


def _rows_of_file(path: str, dtype: str, offset: int, shape: tuple[int, ...]) -> NDArray[Any]:
    if not Path(path).exists():
        raise InputError(f"dask.scheduler: a worker does not see {path}; workers need the project's folder there too")
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)
