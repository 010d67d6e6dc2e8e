"""Recognition of out-of-memory errors of every library, and their messages."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from pipeline.errors import (
    InputError,
    OutOfMemory,
    explain_file_errors,
    explain_out_of_memory,
    fix_hint,
    is_out_of_memory,
    lacks_resources,
)

_HUGE = 2**50


def _torch_on_a_cpu() -> None:
    torch.empty(_HUGE, dtype=torch.uint8)


def _numpy() -> None:
    np.empty(_HUGE, dtype=np.uint8)


@pytest.mark.parametrize("allocate", [_torch_on_a_cpu, _numpy])
def test_a_real_failure_to_allocate_is_recognized(allocate: Callable[[], None]) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as result:
        allocate()
    assert is_out_of_memory(result.value)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("GET was unable to find an engine to execute this computation"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("unable to mmap 64 bytes from file </torch_1>: Cannot allocate memory (12)"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("could not create a primitive"),
        MemoryError("Unable to allocate 8.00 PiB for an array"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        OutOfMemory("micro_batch: too many"),
    ],
    ids=str,
)
def test_the_words_of_every_library(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert lacks_resources(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: ECC"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),  # of a driver that does not fit, too
        RuntimeError("could not create a primitive descriptor for a convolution forward propagation primitive"),
        ValueError("out of memory"),
        pa.ArrowInvalid("column 'out of memory' is missing"),
        InputError("out of memory"),
        OSError(errno.ENOSPC, "No space left on device"),
        KeyError("x"),
    ],
    ids=str,
)
def test_other_errors_are_others(error: Exception) -> None:
    assert not is_out_of_memory(error)
    with pytest.raises(type(error)) as raised, explain_out_of_memory("give less"):
        raise error
    assert raised.value is error


def test_the_explanation_replaces_the_message_of_the_library() -> None:
    with pytest.raises(OutOfMemory) as raised, explain_out_of_memory("batch_size: give less"):
        _torch_on_a_cpu()
    assert str(raised.value) == "batch_size: give less"


def test_the_innermost_explanation_stays() -> None:
    with pytest.raises(OutOfMemory) as raised, explain_out_of_memory("outer"), explain_out_of_memory("inner"):
        _numpy()
    assert str(raised.value) == "inner"


def test_an_unexplained_error_is_one_line() -> None:
    line = fix_hint(RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"))
    assert line is not None
    assert line.startswith("out of memory (RuntimeError: CUDA error: out of memory); ")
    assert "\n" not in line


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        pa.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable"),
    ],
    ids=str,
)
def test_a_limit_on_threads_is_not_cured_by_a_smaller_batch(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, explain_out_of_memory("batch_size: give less"):
        raise error
    assert raised.value is error
    assert not is_out_of_memory(error)
    assert lacks_resources(error)
    assert str(fix_hint(error)).startswith(f"no thread could be started ({error}); ")


def test_a_link_to_itself_is_one_line(tmp_path: Path) -> None:
    link = tmp_path / "images"
    link.symlink_to(link)
    for use in (Path.read_bytes, lambda path: path.resolve(strict=True)):
        with pytest.raises((OSError, RuntimeError)) as raised:
            use(link)
        line = fix_hint(raised.value)
        assert line is not None
        assert str(link) in line
        assert line.endswith("a link leads to itself; remove it")


@pytest.mark.parametrize(
    ("message", "key"),
    [
        ("params.yaml: filter.drop_fraction: 2 is too much", "params.yaml"),
        ("C:/data/a\n b.npy: missing", "C:/data/a b.npy"),
        ("stopped", "stopped"),
    ],
)
def test_the_key_is_what_the_message_names_first(message: str, key: str) -> None:
    assert InputError(message).key == key


def test_a_message_obeys_no_terminal_and_fills_no_screen() -> None:
    """Names of classes and files are quoted, whatever they contain."""
    error = InputError(f"labels.csv: the class \x1b[2J\x07{'dog' * 5000} is unknown;\n rename\u202e it é 犬")
    assert str(error).isprintable()
    assert str(error).startswith("labels.csv: the class \\x1b[2J\\x07dogdog")
    assert str(error).endswith("is unknown; rename\\u202e it é 犬")
    assert len(str(error)) < 1600
    assert error.key == "labels.csv"


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("data/.kept.csv.123.tmp", "data/kept.csv"),
        ("data/.overrides.csv.lock", "data/overrides.csv"),
        ("work/locks/train.lock", "work/locks/train.lock"),
        (b"data/a.npy", "data/a.npy"),
        (Path("data"), "data"),
        (3, "writing"),
        (None, "writing"),
    ],
)
def test_the_file_is_the_one_that_was_to_be_written(name: object, named: str) -> None:
    line = fix_hint(OSError(errno.EROFS, "Failed to open 'data/.kept.csv.123.tmp'", name))
    assert line is not None
    assert InputError(line).key == named
    assert line.startswith(f"{named}: {os.strerror(errno.EROFS)}; ")


def test_of_a_copy_the_second_file_is_named() -> None:
    line = fix_hint(OSError(errno.ENOSPC, "", "theirs/weights.pt", None, "ours/.weights.pt.1.tmp"))
    assert line is not None
    assert line.startswith("ours/weights.pt: ")


def test_only_known_errors_of_files_are_explained() -> None:
    with pytest.raises(InputError) as raised, explain_file_errors():
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "a.npy")
    assert raised.value.key == "a.npy"
    with pytest.raises(BlockingIOError), explain_file_errors():
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), "a.npy")
