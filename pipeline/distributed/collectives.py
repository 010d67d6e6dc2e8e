"""Collectives over ranks: objects, sums in a fixed order, and flags. All are no-ops on one process."""

import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

# Elements gathered at a time: bounds the memory for other ranks' tensors.
_CHUNK = 1 << 22
extra_groups: list[Any] = []
"""Process groups next to the default one; `set_collective_timeout` sets the timeout of all."""

DEFAULT_TIMEOUT_S = 300.0
"""Time after which a rank that others wait for is lost, unless `timeout_seconds` says otherwise."""

# NCCL's own end is a trace of many lines, so the watch of the ranks, see `liveness`, comes first.
_NCCL_FACTOR = 3.0
# Collectives that this process has reached. Process-wide, as torch's default process group.
_arrivals = [0]


def launched_by_torchrun() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_distributed() -> bool:
    """Return whether this process has joined a process group of more than one rank.

    Raises:
        RuntimeError: torchrun started this process, and it has not joined the process group.
    """
    if launched_by_torchrun() and not dist.is_initialized():
        raise RuntimeError("started by torchrun outside `distributed.join_process_group()`")
    return dist.is_initialized() and dist.get_world_size() > 1


def uses_nccl() -> bool:
    """Return whether the ranks exchange by NCCL, which blocks the GPU until all ranks have reached a collective."""
    return str(dist.get_backend()) == "nccl"


def collective_timeout(seconds: float) -> timedelta:
    """Return the timeout of a process group whose ranks are lost after `seconds`."""
    return timedelta(seconds=_NCCL_FACTOR * seconds if uses_nccl() else seconds)


def local_world_size() -> int:
    """Return the number of processes of this run on this node."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def arrivals() -> int:
    """Return how many counted collectives this process has reached; equal on all ranks that wait together."""
    return _arrivals[0]


def arrive() -> None:
    """Count a collective, or an exchange of several, that this process has reached; all ranks call it before it.

    A rank that has reached fewer than the others keeps them waiting, see `liveness`.
    """
    _arrivals[0] += 1


def broadcast_object(value: T) -> T:
    """Return rank 0's `value`, any picklable object, on all ranks."""
    if not is_distributed():
        return value
    arrive()
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def all_gather_object(value: T) -> list[T]:
    """Return every rank's `value`, any picklable object, in rank order on all ranks."""
    if not is_distributed():
        return [value]
    arrive()
    box: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(box, value)
    return box


def gather_object(value: T) -> list[T]:
    """Return every rank's `value`, any picklable object, in rank order on rank 0; on the others an empty list."""
    if not is_distributed():
        return [value]
    arrive()
    box: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, box)
    return box or []


def any_rank(value: bool) -> bool:
    """Return whether `value` is true on any rank."""
    return any(all_gather_object(value))


def barrier() -> None:
    """Wait for all ranks."""
    if is_distributed():
        arrive()
        dist.barrier()


def all_reduce_sum_(tensor: Tensor) -> Tensor:
    """Sum over ranks, in place."""
    if is_distributed():
        arrive()
        dist.all_reduce(tensor)
    return tensor


def all_reduce_max_(values: Tensor) -> None:
    """Replace each value by its largest over all ranks; values are finite."""
    if is_distributed():
        arrive()
        dist.all_reduce(values, op=dist.ReduceOp.MAX)


def all_reduce_pairwise_(tensor: Tensor) -> Tensor:
    """Sum over ranks, in place, in the fixed order of `pairwise_sum`; the same bits on all ranks.

    Args:
        tensor: (n,) contiguous.
    """
    if not is_distributed():
        return tensor
    arrive()
    for chunk in tensor.split(_CHUNK):
        gathered = [torch.empty_like(chunk) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, chunk)
        chunk.copy_(pairwise_sum(gathered))
    return tensor


def pairwise_sum(tensors: Iterable[Tensor]) -> Tensor:
    """Sum in the order of a balanced binary tree, ((0 + 1) + (2 + 3)) + ...; an unpaired tensor moves up.

    Where each rank sums a power of two of consecutive tensors, the pairwise sum of the ranks' sums has the bits of the
    pairwise sum over all tensors. Tensors may be overwritten; log2(n) of them are in memory.
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
    remaining = [tensor for tensor in levels if tensor is not None]
    assert remaining, "nothing to add"
    total = remaining[0]
    for higher in remaining[1:]:
        total = higher.add_(total)
    return total


class FlagSync:
    """Flags that any rank may raise; all ranks read them at the same call, one call later.

    The delay lets the all-reduce overlap with the work between two calls, on the CPU, so that it never waits for a GPU.
    A single process reads its flags at once.
    """

    def __init__(self, n_flags: int) -> None:
        self._flags = torch.zeros(n_flags, dtype=torch.int32)
        self._pending: Any = None
        self._group: Any = None
        if is_distributed() and dist.get_backend() != "gloo":
            self._group = dist.new_group(backend="gloo")
            extra_groups.append(self._group)

    def all_reduce(self, flags: Sequence[bool]) -> list[bool]:
        """Send this rank's flags and return which of the last call's flags any rank raised; all ranks call it."""
        if not is_distributed():
            return list(flags)
        arrive()
        if self._pending is not None:
            self._pending.wait()
        reduced = self._flags.bool().tolist()
        self._flags = torch.tensor(flags, dtype=torch.int32)
        self._pending = dist.all_reduce(self._flags, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return reduced

    def reset(self) -> None:
        """Drop the flags of the last call, for a new run; all ranks call it."""
        self.all_reduce([False] * len(self._flags))
