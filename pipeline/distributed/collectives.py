"""What ranks tell each other. Everything is a no-op on one process, so callers have one code path."""

import os
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def several() -> bool:
    """Whether there is anybody to exchange with.

    Raises:
        RuntimeError: torchrun started this process, and it has not joined the others.
    """
    if launched() and not dist.is_initialized():
        raise RuntimeError("started by torchrun outside `distributed.session()`")
    return dist.is_initialized() and dist.get_world_size() > 1


def ranks_on_this_node() -> int:
    """Processes of this run that share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def broadcast(value: T) -> T:
    """Rank 0's `value` on all ranks; any picklable object."""
    if not several():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def all_gather(value: T) -> list[T]:
    """Every rank's `value`, in their order, on all ranks; any picklable object."""
    if not several():
        return [value]
    box: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(box, value)
    return box


def any_rank(value: bool) -> bool:
    """Whether `value` is true on any rank."""
    return any(all_gather(value))


def barrier() -> None:
    """Wait for all ranks."""
    if several():
        dist.barrier()


def all_reduce_sum_(tensor: Tensor) -> Tensor:
    """Sum over ranks, in place."""
    if several():
        dist.all_reduce(tensor)
    return tensor
