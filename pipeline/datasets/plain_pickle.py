"""Unpickle plain data of bounded size, without running code."""

import io
import math
import pickle
import pickletools
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError

_PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, dict, np.ndarray)
_NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")
_MEMO_WRITERS = {"PUT", "BINPUT", "LONG_BINPUT"}
# They reserve memory for buffers outside of the pickle, or of any stated size.
_BUFFERS = {"BYTEARRAY8", "NEXT_BUFFER", "READONLY_BUFFER"}


def load_plain_pickle(data: bytes, *, source: str) -> Any:
    """Unpickle plain data: numbers, text, bytes, lists, dictionaries and NumPy arrays.

    Nothing that the pickle names is imported or called; NumPy arrays of numbers are built from checked parts. Strings
    of Python 2 become bytes. Memory: O(len(data)).

    Args:
        source: name of the data in messages.

    Raises:
        InputError: the data is not a pickle, or holds other objects.
    """
    try:
        _check_memory(data)
        loaded = _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
        # A truncated pickle may leave a part of an array.
        if not isinstance(loaded, _PLAIN):
            raise pickle.UnpicklingError(f"it holds a {type(loaded).__name__}")
        return loaded
    except Exception as error:  # noqa: BLE001 - foreign bytes can make the unpickler raise anything
        raise InputError(f"{source}: not a pickle of plain arrays ({error}); get the original archive") from None


def _check_memory(data: bytes) -> None:
    """Refuse what makes the unpickler reserve more memory than the pickle has bytes.

    It fills a table up to the largest index of an object, whatever the number of objects.
    """
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _BUFFERS:
            raise pickle.UnpicklingError(f"it has a buffer, {opcode.name}")
        if opcode.name in _MEMO_WRITERS and int(argument or 0) not in range(len(data)):
            raise pickle.UnpicklingError(f"it numbers an object {argument}")


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # NumPy 1 wrote numpy.core, NumPy 2 writes numpy._core.
        match module.replace("numpy._core", "numpy.core"), name:
            case "numpy", "ndarray":
                return _ArrayClass
            case "numpy", "dtype":
                return _DType
            case "numpy.core.multiarray", "_reconstruct":
                return _empty_array
        raise pickle.UnpicklingError(f"it names {module}.{name}")


class _ArrayClass:
    """Stands for `numpy.ndarray`, which would allocate an array of any size when called."""


class _DType:
    """Stands for `numpy.dtype`, whose own `__setstate__` trusts its argument."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        self._name = name.decode("ascii") if isinstance(name, bytes) else name
        self._byte_order = "="
        if not isinstance(self._name, str) or not _NUMBERS.fullmatch(self._name):
            raise pickle.UnpicklingError("it has an array of other values than numbers")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "=", "|"):
            raise pickle.UnpicklingError("it has numbers of an unknown byte order")
        self._byte_order = order

    def to_numpy(self) -> np.dtype[Any]:
        return np.dtype(self._byte_order + self._name)


class _PlainArray(np.ndarray[Any, Any]):
    """An array that checks what it is filled with: NumPy's own `__setstate__` can read beyond the end of a list."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, raw = state
        if not isinstance(dtype, _DType) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("it has an array of other values than numbers")
        if not isinstance(shape, tuple) or not all(type(size) is int and 0 <= size < 2**31 for size in shape):
            raise pickle.UnpicklingError("it has an array of an impossible shape")
        if math.prod(shape) * dtype.to_numpy().itemsize != len(raw):
            raise pickle.UnpicklingError(f"it has {len(raw)} bytes for an array of shape {shape}")
        checked: Any = (1, shape, dtype.to_numpy(), bool(is_fortran), raw)
        super().__setstate__(checked)


def _empty_array(kind: type, shape: tuple[int, ...], _: bytes) -> NDArray[Any]:
    """Return the array that NumPy's `_reconstruct` returns for its pickles; their next step fills it."""
    if kind is not _ArrayClass or shape != (0,):
        raise pickle.UnpicklingError("it starts an array with a size")
    return np.zeros(0, dtype=np.int8).view(_PlainArray)
