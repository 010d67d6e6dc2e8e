"""Precision of training (autocast, loss scaling) and torch.compile for the optimizer steps.

Evaluation is in single precision.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import nn

from pipeline.errors import InputError, MachineError
from pipeline.models.layers import KeyedDropout

Precision = Literal["fp32", "tf32", "bf16", "fp16"]

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}

# Shapes of one network: batch sizes of a study times micro-batches of uneven size. torch's default is 8.
_SHAPES = 256


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return mixed precision (Micikevicius et al. 2018) for `bf16` and `fp16`; a no-op for the others."""
    return torch.autocast(device.type, dtype=_HALF[precision]) if precision in _HALF else nullcontext()


def make_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler | None:
    """Return a loss scaler for `fp16`, which keeps small gradients above its smallest number; None for the others."""
    return torch.amp.GradScaler(device.type) if precision == "fp16" else None


def compile_network(model: nn.Module, device: torch.device, *, cuda_graphs: bool = False) -> None:
    """Compile the forward and backward passes of `model` when a shape first occurs.

    Networks of the same architecture share compiled code, so a study compiles each shape once.

    Args:
        cuda_graphs: record and replay them as CUDA graphs; each step begins with `mark_step_begin`.

    Raises:
        InputError: CUDA graphs need a GPU.
        MachineError: there is no C++ compiler.
    """
    if cuda_graphs and device.type != "cuda":
        raise InputError(f"compile: cuda_graphs needs a GPU, and this runs on {device}; set compile: true or false")
    from torch._inductor.cpp_builder import get_cpp_compiler  # a second to import; few runs need it
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise MachineError("compile: needs a C++ compiler and finds none; install g++, or set compile: false") from None
    torch._dynamo.config.recompile_limit = _SHAPES
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for module in model.modules():
        if isinstance(module, KeyedDropout):
            # The compiler folds the wrapping integer arithmetic into constants that overflow.
            module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign]
    # "reduce-overhead" is torch's name for CUDA graphs.
    model.compile(dynamic=False, mode="reduce-overhead" if cuda_graphs else None)


def mark_step_begin() -> None:
    """Let CUDA graphs reuse the memory of their last results."""
    torch.compiler.cudagraph_mark_step_begin()


def compile_disabled() -> AbstractContextManager[None]:
    """Disable compilation while active, for passes too few to compile for a minute."""
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance
