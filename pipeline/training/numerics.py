"""Precision and compilation."""

from contextlib import AbstractContextManager
from typing import Literal

import torch
from torch import nn

from pipeline.errors import InputError, MachineError
from pipeline.models.layers import KeyedDropout

# The arithmetic of training: full single precision, or faster and coarser. Evaluation is in full.


Precision = Literal["fp32", "tf32", "bf16", "fp16"]

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Mixed precision (Micikevicius et al. 2018) for `bf16` and `fp16`, nothing for the others."""
    return torch.autocast(device.type, dtype=_HALF.get(precision), enabled=precision in _HALF)


def make_scaler(precision: Precision, device: torch.device) -> torch.amp.GradScaler | None:
    """Of the loss, which keeps small gradients above the smallest number of `fp16`; None for the others."""
    return torch.amp.GradScaler(device.type) if precision == "fp16" else None


# torch.compile, for the optimizer steps alone.


# Of one network: batch sizes of a study times the passes of uneven size that each has. torch's own
# limit is 8.
_SHAPES = 256


def compile_network(model: nn.Module, device: torch.device, *, cuda_graphs: bool = False) -> None:
    """Have the forward and backward passes of `model` compiled when a shape is first seen.

    Networks of the same kind share what was compiled, so a study compiles each shape once.

    Args:
        cuda_graphs: record and replay them as CUDA graphs; each step begins with `mark_step_begin`.

    Raises:
        InputError: there is no C++ compiler, or CUDA graphs are asked for where no GPU is.
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
            # A compiler folds the constants of arithmetic that wraps around into numbers too large for it.
            module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign]
    # "reduce-overhead" is torch's name for CUDA graphs.
    model.compile(dynamic=False, mode="reduce-overhead" if cuda_graphs else None)


def mark_step_begin() -> None:
    """Memory that a CUDA graph has given results in may be used again."""
    torch.compiler.cudagraph_mark_step_begin()


def compile_disabled() -> AbstractContextManager[None]:
    """While active nothing is compiled: for passes too few to be worth a minute."""
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance
