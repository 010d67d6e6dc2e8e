"""Memory that a batch needs, and the micro-batch chosen from what host and device have."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor, nn

from pipeline import distributed
from pipeline.batching import BatchSlice
from pipeline.errors import InputError, OutOfMemory, is_out_of_memory
from pipeline.host_memory import available_memory

CPU_MICRO_BATCH = 512
"""Larger passes are no faster on a CPU and exceed its caches."""
# Fraction of the available memory; gradients, optimizer state and other processes need the rest.
_CPU_SHARE = 0.5


@cache
def _free_at_start() -> int:
    """Return the memory that was available at the first call in this process.

    Later calls would count as used what the process has freed but keeps. A run's micro-batch must not depend on the
    runs before it, since a killed study resumes in the middle.
    """
    return available_memory()


def choose_micro_batch(
    requested: int | Literal["auto"],
    slices: Sequence[Sequence[BatchSlice]],
    *,
    device: torch.device,
    bytes_per_sample: Callable[[], float],
    try_pass: Callable[[int], None],
    local_world_size: int,
) -> int:
    """Choose the most samples of a forward pass, the same on all ranks.

    On a GPU `auto` tries all of a rank's samples and halves them on out-of-memory. On a CPU, where running out kills
    the process, it divides the available memory of the machine, container or batch job by the memory that activations
    take.

    Args:
        requested: samples at most; more than a rank has of a batch count as those.
        slices: this rank's slices of a batch, for each batch size of the run.
        bytes_per_sample: bytes per sample that a forward pass keeps for its backward pass.
        try_pass: runs a forward and a backward pass of at most so many samples; raises an error that
            `is_out_of_memory` recognizes.
        local_world_size: processes that share this node's memory.

    Raises:
        InputError: a single BatchNorm group is more than was requested, or than fits.
    """
    # Shares of a batch may differ by a sample; the choice must hold for every rank.
    by_rank = distributed.all_gather_object([[size for part in batch for size in part.group_sizes] for batch in slices])
    group_sizes = [sizes for batches in by_rank for sizes in batches]
    group, largest = max(map(max, group_sizes)), max(map(sum, group_sizes))
    # The first with the largest group, for messages.
    batch = next(sum(map(sum, of_ranks)) for of_ranks in zip(*by_rank, strict=True) if group == max(map(max, of_ranks)))
    if requested != "auto":
        if requested < group:
            raise InputError(
                f"micro_batch: {requested} cannot hold a BatchNorm group of {group} images; give at least {group}, "
                "more simulated_workers, or a smaller bn_group"
            )
        return min(requested, largest)
    if device.type != "cuda":
        n_fit = samples_that_fit(_free_at_start(), bytes_per_sample(), local_world_size)
        if distributed.any_rank(n_fit < group):
            raise _does_not_fit(group, batch)
        return min(*distributed.all_gather_object(n_fit), max(group, CPU_MICRO_BATCH), largest)
    return halve_until_fits(largest, group, try_pass, batch)


def samples_that_fit(free: int, bytes_per_sample: float, local_world_size: int) -> int:
    """Return the most images of a pass on a CPU, for each of the processes that share `free` bytes."""
    return int(_CPU_SHARE * free / local_world_size / bytes_per_sample)


def pass_fits(try_pass: Callable[[], None]) -> bool:
    """Return whether `try_pass` runs on every rank without running out of memory; all ranks call it."""
    failed = False
    try:
        try_pass()
    except Exception as error:
        # Libraries report a full memory by errors of many classes; all others are raised again.
        if not is_out_of_memory(error):
            raise
        failed = True
    # Outside the handler, whose exception keeps the tensors of the pass alive.
    fits = not distributed.any_rank(failed)
    if not fits:
        torch.cuda.empty_cache()
    return fits


def halve_until_fits(largest: int, group: int, try_pass: Callable[[int], None], batch: int | None = None) -> int:
    """Return the most samples, of largest, largest / 2, ..., group, for which `try_pass` runs on every rank.

    Args:
        batch: the batch with the group, in the error's message.

    Raises:
        OutOfMemory: it runs for none.
    """
    max_size = largest
    while not pass_fits(partial(try_pass, max_size)):
        if max_size == group:
            raise _does_not_fit(group, batch)
        max_size = max(group, max_size // 2)
    return max_size


def activation_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Return the bytes that a forward pass in training mode keeps for its backward pass, without the weights."""
    kept: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        output = forward()
    for tensor in (*model.parameters(), *model.buffers()):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    del output  # keeps the recorded storages alive until here
    return sum(kept.values())


def _does_not_fit(group: int, batch: int | None) -> OutOfMemory:
    of_batch = "" if batch is None else f" of a batch of {batch}"
    return OutOfMemory(
        f"micro_batch: auto, but one BatchNorm group of {group} images{of_batch} does not fit the memory; "
        "give more simulated_workers or a smaller bn_group, which change the result, or more memory"
    )
