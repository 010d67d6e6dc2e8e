"""torch.compile, for the optimizer steps alone."""

from contextlib import AbstractContextManager

import torch
from torch import nn

# Of one network: batch sizes of a study times the passes of uneven size that each has. Beyond
# torch's own limit of 8 it would go on uncompiled, without a word.
_SHAPES = 256


def compile_network(model: nn.Module) -> None:
    """Have the forward and backward passes of `model` compiled when a shape is first seen.

    Networks of the same kind share what was compiled, so a study compiles each shape once.
    """
    torch._dynamo.config.recompile_limit = _SHAPES
    model.compile(dynamic=False)


def eager() -> AbstractContextManager[None]:
    """While active nothing is compiled: for passes too few to be worth a minute."""
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance
