"""Pickles: plain data comes through, code does not run."""

import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.datasets.archives import load_plain_pickle
from pipeline.errors import InputError
from tests.fixtures.images import python2_pickle

_CONTENT = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [3, 1], b"names": [b"cat", b"dog"]}


@pytest.mark.parametrize("data", [python2_pickle(_CONTENT), pickle.dumps(_CONTENT, protocol=4)], ids=["old", "new"])
def test_arrays_lists_and_strings(data: bytes) -> None:
    loaded = load_plain_pickle(data, source="x")
    assert list(loaded) == [b"data", b"labels", b"names"]
    np.testing.assert_array_equal(loaded[b"data"], _CONTENT[b"data"])
    assert loaded[b"data"].dtype == np.uint8
    assert loaded[b"labels"] == [3, 1]
    assert loaded[b"names"] == [b"cat", b"dog"]


class _Command:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def test_code_is_refused_and_not_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    data = pickle.dumps(_Command(f"touch {canary}"))
    with pytest.raises(InputError) as refused:
        load_plain_pickle(data, source="batch")
    assert refused.value.key == "batch"
    assert not canary.exists()
    pickle.loads(data)
    assert canary.exists(), "the same pickle does run code where it may"


@pytest.mark.parametrize("name", ["builtins.eval", "numpy.load", "numpy.core.multiarray.set_typeDict", "os.system"])
def test_no_other_name_is_found(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    with pytest.raises(InputError) as refused:
        load_plain_pickle(b"c" + module.encode() + b"\n" + attribute.encode() + b"\n.", source="x")
    assert name in str(refused.value)


_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I%d\ntS'b'\ntR."


def _filled(shape: bytes, dtype: bytes, content: bytes) -> bytes:
    """Return the pickle of an array with a stated shape, type and content, whether they fit or not."""
    made = b"cnumpy\ndtype\n(S'" + dtype + b"'\nI0\nI1\ntR"
    return (_ARRAY % 0)[:-1] + b"(I1\n(" + shape + b"t" + made + b"I00\n" + content + b"tb."


def _nested(levels: int) -> bytes:
    """Return the opcodes of a list whose text has 2 ** `levels` parts: each level holds the one before twice."""
    return b"]q\x00" + b"".join(b"]q%c(h%ch%ce" % (level, level - 1, level - 1) for level in range(1, levels))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"]r" + (2**25).to_bytes(4, "little") + b".", id="number of an object"),
        pytest.param(b"]p33554432\n.", id="number in digits"),
        pytest.param(b"\x80\x05\x96" + (2**28).to_bytes(8, "little") + b"abc.", id="buffer"),
        pytest.param(_ARRAY % 2**28, id="array without data"),
        pytest.param(b"cnumpy\nndarray\n(I268435456\ntR.", id="array class"),
        pytest.param(_filled(b"I268435456\n", b"u1", b"S'abc'\n"), id="array with less data"),
        pytest.param(_filled(b"I1\n", b"V268435456", b"S'abc'\n"), id="large items"),
        # NumPy itself would read 64 objects of this list.
        pytest.param(_filled(b"I64\n", b"O8", b"]"), id="objects beyond the end of a list"),
        pytest.param(_filled(_nested(60), b"u1", b"S''\n"), id="text of a shape"),
        pytest.param(b"cnumpy\ndtype\n(" + _nested(60) + b"tR.", id="text of a type"),
    ],
)
def test_a_few_bytes_do_not_reserve_much_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as refused:
            load_plain_pickle(data, source="x")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert refused.value.key == "x"


def test_the_arrays_that_the_others_vary_are_read() -> None:
    assert load_plain_pickle(_ARRAY % 0, source="x").shape == (0,)
    assert load_plain_pickle(_filled(b"I3\n", b"u1", b"S'abc'\n"), source="x").tolist() == [97, 98, 99]


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">f4", "?"])
def test_an_array_of_any_numbers_comes_through(dtype: str, protocol: int) -> None:
    for array in (np.arange(6, dtype="u1").astype(dtype).reshape(2, 3), np.zeros((3, 0), dtype=dtype)):
        for order in (array, np.asfortranarray(array)):
            loaded = load_plain_pickle(pickle.dumps(order, protocol=protocol), source="x")
            np.testing.assert_array_equal(loaded, order)
            assert loaded.dtype.newbyteorder("=") == order.dtype.newbyteorder("="), "NumPy swaps bytes as it reads"


# What is left of the array is its class of numbers.
@example(data=b".", keep=114)
@settings(deadline=None)
@given(data=st.binary(max_size=60), keep=st.integers(0, 300))
def test_damaged_pickles_raise_nothing_else(data: bytes, keep: int) -> None:
    try:
        loaded = load_plain_pickle(python2_pickle(_CONTENT)[:keep] + data, source="x")
    except InputError as error:
        assert error.key == "x"  # noqa: PT017 - either outcome is right
    else:
        assert isinstance(loaded, str | bytes | int | float | bool | list | dict | tuple | np.ndarray | None), type(
            loaded
        )
