"""Collectives: exact order sums, agreement of flags."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

# What ranks tell each other. Everything is a no-op on one process, so callers have one code path.


T = TypeVar("T")


def launched_by_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_distributed() -> bool:
    """Whether there is anybody to exchange with.

    Raises:
        RuntimeError: torchrun started this process, and it has not joined the others.
    """
    if launched_by_torchrun() and not dist.is_initialized():
        raise RuntimeError("started by torchrun outside `distributed.session()`")
    return dist.is_initialized() and dist.get_world_size() > 1


def local_world_size() -> int:
    """Processes of this run that share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def broadcast(value: T) -> T:
    """Rank 0's `value` on all ranks; any picklable object."""
    if not is_distributed():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def all_gather(value: T) -> list[T]:
    """Every rank's `value`, in their order, on all ranks; any picklable object."""
    if not is_distributed():
        return [value]
    box: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(box, value)
    return box


def any_rank(value: bool) -> bool:
    """Whether `value` is true on any rank."""
    return any(all_gather(value))


def barrier() -> None:
    """Wait for all ranks."""
    if is_distributed():
        dist.barrier()


def all_reduce_sum_(tensor: Tensor) -> Tensor:
    """Sum over ranks, in place."""
    if is_distributed():
        dist.all_reduce(tensor)
    return tensor


# Sums whose bits do not depend on who holds which part.


# Gathered at a time: bounds what each rank holds of the others'.
_CHUNK = 1 << 22


def tree_sum_(tensor: Tensor) -> Tensor:
    """Sum over ranks, in place, in the fixed order of `pairwise_sum`; the same bits on all ranks.

    Args:
        tensor: (n,) contiguous.
    """
    if not is_distributed():
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


# Flags that ranks agree on without waiting for each other.


class FlagSync:
    """Flags that any rank may raise; all ranks learn of them at the same call, one call later.

    The delay lets the exchange run beside the work between two calls, on the CPU, so that it never
    waits for a GPU. A single process learns of its own flags at once.
    """

    def __init__(self, n_flags: int) -> None:
        self._flags = torch.zeros(n_flags, dtype=torch.int32)
        self._pending: Any = None
        self._group: Any = dist.new_group(backend="gloo") if is_distributed() and dist.get_backend() != "gloo" else None

    def all_reduce(self, flags: Sequence[bool]) -> list[bool]:
        """Send this rank's flags; returns which of those sent with the last call any rank had raised."""
        if not is_distributed():
            return list(flags)
        if self._pending is not None:
            self._pending.wait()
        agreed = self._flags.bool().tolist()
        self._flags = torch.tensor(flags, dtype=torch.int32)
        self._pending = dist.all_reduce(self._flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return agreed

    def reset(self) -> None:
        """Drop what the last call sent: another run begins. All ranks call it."""
        self.all_reduce([False] * len(self._flags))
