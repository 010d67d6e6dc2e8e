"""The arithmetic of float32 products and convolutions: IEEE single precision, or TF32."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

_BACKENDS: Any = torch.backends
_MATMUL, _CUDNN, _MKLDNN = _BACKENDS.cuda.matmul, _BACKENDS.cudnn, _BACKENDS.mkldnn
# The general setting first: reading a special one that is "none" gives the general one.
_ALL = (_BACKENDS, _MATMUL, _CUDNN, _CUDNN.conv, _CUDNN.rnn, _MKLDNN, _MKLDNN.matmul, _MKLDNN.conv, _MKLDNN.rnn)


def _set_precision(backend: Any, value: str) -> None:
    if backend is _MKLDNN:
        # torch 2.15: assigning to `mkldnn.fp32_precision` sets that of all backends.
        _MKLDNN.set_flags(_fp32_precision=value)
    else:
        backend.fp32_precision = value


def _own_precision(backend: Any) -> str:
    """Set a precision to "none" and return what it was, where all more general ones are "none" already."""
    before: str = backend.fp32_precision
    _set_precision(backend, "none")
    return before


@contextmanager
def float32_arithmetic(*, tf32: bool, fast: bool = False) -> Iterator[None]:
    """Compute float32 in IEEE single precision, or in TF32 with its 10 bits of mantissa, deterministically.

    torch's default is TF32 for convolutions, and kernels whose bits differ from call to call. `join_process_group()`
    sets IEEE for everything in it. What computes by a recipe sets it again, since the recipe may request TF32. A CPU
    always computes in IEEE single precision. The caller's settings are restored at the end, by whichever of torch's two
    interfaces they were made.

    Args:
        tf32: use TF32 on GPUs.
        fast: use TF32, and the kernels that cuDNN finds to be fastest, which may give other bits in each call.
    """
    kernels = _CUDNN.deterministic, _CUDNN.benchmark
    flags = _flags()
    precisions = [_own_precision(backend) for backend in _ALL]
    # The older flags, since torch's own readers of them raise while only `fp32_precision` is set.
    _MATMUL.allow_tf32 = _CUDNN.allow_tf32 = tf32 or fast
    _CUDNN.deterministic, _CUDNN.benchmark = not fast, fast
    try:
        yield
    finally:
        for set_flag, value in flags:
            set_flag(value)
        # The special ones first, while the general one is "none".
        for backend, precision in reversed(list(zip(_ALL, precisions, strict=True))):
            if backend.fp32_precision != precision:
                _set_precision(backend, precision)
        _CUDNN.deterministic, _CUDNN.benchmark = kernels


def _flags() -> list[tuple[Callable[[Any], None], Any]]:
    """Return a setter and the value of each older flag; some cannot be read while `fp32_precision` differs."""
    flags: list[tuple[Callable[[Any], None], Any]] = []
    for read, write in (
        (lambda: _MATMUL.allow_tf32, partial(setattr, _MATMUL, "allow_tf32")),
        (lambda: _CUDNN.allow_tf32, partial(setattr, _CUDNN, "allow_tf32")),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    ):
        with suppress(RuntimeError):
            flags.append((write, read()))
    return flags
