"""Pickles of plain data: numbers, text, bytes, lists, dictionaries and NumPy arrays, nothing else."""

import io
import pickle
from typing import Any

import numpy as np

from pipeline.errors import InputError

_PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, dict, np.ndarray)


def load_plain_pickle(data: bytes, *, source: str) -> Any:
    """Unpickle without ever importing or calling what a pickle names, NumPy's array rebuilder excepted.

    Python 2's strings become bytes.

    Raises:
        InputError: not a pickle, or one that asks for more.
    """
    try:
        loaded = _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
        # One that ends early may leave what rebuilds an array.
        if not isinstance(loaded, _PLAIN):
            raise pickle.UnpicklingError(f"it holds a {type(loaded).__name__}")
        return loaded
    except Exception as error:  # noqa: BLE001 - foreign bytes can make the unpickler raise anything
        raise InputError(f"{source}: not a pickle of plain arrays ({error}); get the original archive") from None


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # NumPy 1 wrote numpy.core, NumPy 2 writes numpy._core.
        match module.replace("numpy._core", "numpy.core"), name:
            case "numpy", "ndarray":
                return np.ndarray
            case "numpy", "dtype":
                return np.dtype
            case "numpy.core.multiarray", "_reconstruct":
                return np.zeros(0).__reduce__()[0]
        raise pickle.UnpicklingError(f"it names {module}.{name}")
