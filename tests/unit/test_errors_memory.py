"""A sound file that there is no memory to read is not called damaged, left out, or passed over."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from pipeline.artifacts.files import open_array
from pipeline.artifacts.tables import read_csv, read_parquet
from pipeline.datasets.decode import decode_image
from pipeline.errors import InputError, fix_hint
from pipeline.processes import MIN_MEMORY, check_memory_limit
from pipeline.training.checkpointing import Checkpoints
from pipeline.training.weights import load_torch_file
from tests.fixtures.images import photo

_ALLOCATOR = RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")


def _raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def _array(folder: Path) -> Callable[[], object]:
    np.save(folder / "a.npy", np.zeros(3))
    return lambda: open_array(folder / "a.npy", dtype=np.float64, ndim=1)


def _table(folder: Path) -> Callable[[], object]:
    pyarrow.parquet.write_table(pa.table({"a": [1]}), folder / "a.parquet")
    return lambda: read_parquet(folder / "a.parquet")


def _csv(folder: Path) -> Callable[[], object]:
    (folder / "a.csv").write_text("a\n1\n")
    return lambda: read_csv(folder / "a.csv", {"a": pa.int64()})


def _weights(folder: Path) -> Callable[[], object]:
    torch.save({"a": torch.zeros(2)}, folder / "a.pt")
    return lambda: load_torch_file(folder / "a.pt")


def _image(_: Path) -> Callable[[], object]:
    return lambda: decode_image(photo(0), 8, max_megapixels=1)


_CASES = {
    "array": (_array, "numpy.load", MemoryError("Unable to allocate 4 GiB")),
    "mapped array": (_array, "numpy.load", OSError(12, "Cannot allocate memory")),
    "table": (_table, "pyarrow.parquet.ParquetFile", pa.ArrowMemoryError("malloc of size 4480 failed")),
    "thread of a table": (
        _table,
        "pyarrow.parquet.ParquetFile",
        pa.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable"),
    ),
    "csv": (_csv, "pyarrow.csv.read_csv", pa.ArrowMemoryError("malloc of size 4480 failed")),
    "weights": (_weights, "torch.load", _ALLOCATOR),
    "image": (_image, "PIL.Image.open", MemoryError()),
}


@pytest.mark.parametrize(("make", "function", "error"), _CASES.values(), ids=list(_CASES))
def test_it_is_the_memory_and_not_the_file(
    make: Callable[[Path], Callable[[], object]],
    function: str,
    error: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = make(tmp_path)
    read()
    monkeypatch.setattr(function, _raising(error))
    with pytest.raises(type(error)) as raised:
        read()
    assert not isinstance(raised.value, InputError)
    assert str(fix_hint(raised.value)).startswith(("out of memory", "no thread", "writing: Cannot allocate memory"))


def test_a_checkpoint_without_memory_for_it_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path / "run")
    for step in (1, 2):
        checkpoints.save(step, {"step": step})
    lines: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr("torch.load", _raising(_ALLOCATOR))
        with pytest.raises(RuntimeError, match="allocate"):
            checkpoints.load_latest(lines.append)
    assert lines == []
    assert checkpoints.load_latest(lines.append) == (2, {"step": 2})


def test_a_limit_on_memory_is_met_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    monkeypatch.setattr("resource.getrlimit", lambda _: (used + 2 * MIN_MEMORY, -1))
    check_memory_limit()
    monkeypatch.setattr("resource.getrlimit", lambda _: (used + MIN_MEMORY // 2, -1))
    with pytest.raises(InputError) as raised:
        check_memory_limit()
    assert raised.value.key == "ulimit -v"
