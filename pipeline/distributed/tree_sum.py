"""Sums whose bits do not depend on who holds which part."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.distributed.collectives import several

# Gathered at a time: bounds what each rank holds of the others'.
_CHUNK = 1 << 22


def tree_sum_(tensor: Tensor) -> Tensor:
    """Sum over ranks, in place, in the fixed order of `pairwise_sum`; the same bits on all ranks.

    Args:
        tensor: (n,) contiguous.
    """
    if not several():
        return tensor
    for chunk in tensor.split(_CHUNK):
        gathered = [torch.empty_like(chunk) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, chunk)
        chunk.copy_(pairwise_sum(gathered))
    return tensor


def pairwise_sum(tensors: Iterable[Tensor]) -> Tensor:
    """Sum in the order of a balanced binary tree, ((0 + 1) + (2 + 3)) + ...; an odd one out moves up.

    So the sum over ranks of their partial sums has the bits of one over everything, where each
    holds a power of two of neighbours. Tensors may be overwritten; log2(n) of them are held.
    """
    levels: list[Tensor | None] = []
    for tensor in tensors:
        for level, waiting in enumerate(levels):
            if waiting is None:
                levels[level] = tensor
                break
            tensor, levels[level] = waiting.add_(tensor), None
        else:
            levels.append(tensor)
    held = [tensor for tensor in levels if tensor is not None]
    assert held, "nothing to add"
    total = held[0]
    for higher in held[1:]:
        total = higher.add_(total)
    return total
