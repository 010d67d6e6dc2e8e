"""How many images pass forward at a time: as many as the memory takes, in whole BatchNorm groups."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

from pipeline import distributed
from pipeline.batching import Part
from pipeline.errors import InputError, OutOfMemory, is_out_of_memory
from pipeline.training.host_memory import available_bytes

CPU_IMAGES = 512
"""Larger passes are no faster on a CPU and leave its caches behind."""
# Of what is free now; gradients, optimizer state and other processes need the rest.
_CPU_SHARE = 0.5


@cache
def _free_at_start() -> int:
    """What was available when a run of this process first asked.

    Asked again, a process that keeps freed memory would count it as used: what a cell gets must not
    depend on the cells before it, since a killed study begins in the middle.
    """
    return available_bytes()


def choose_micro_batch(
    requested: int | Literal["auto"],
    parts: Sequence[Sequence[Part]],
    *,
    device: torch.device,
    bytes_per_image: Callable[[], float],
    try_pass: Callable[[int], None],
    ranks_here: int,
) -> int:
    """Images of a forward pass, the same on all ranks.

    On a GPU `auto` tries the whole of a rank's images and halves on out-of-memory. On a CPU, where
    running out ends the process, it goes by the memory that activations will take, and by what is free
    on the machine or in its container or batch job.

    Args:
        requested: images at most.
        parts: this rank's simulated workers, in a batch of each size that the run has.
        bytes_per_image: kept by a forward pass for its backward pass.
        try_pass: runs a forward and a backward pass of at most so many images and raises
            an error that `is_out_of_memory` if it must.
        ranks_here: processes that share this node's memory.

    Raises:
        InputError: a single BatchNorm group is more than was requested, or than fits.
    """
    # Shares of a batch may differ by an image; what is chosen must hold for every rank.
    shares = distributed.all_gather([[size for part in batch for size in part.group_sizes] for batch in parts])
    groups_of_batches = [sizes for of_rank in shares for sizes in of_rank]
    group, whole = (max(measure(sizes) for sizes in groups_of_batches) for measure in (max, sum))
    if requested != "auto":
        if requested < group:
            raise InputError(
                f"micro_batch: {requested} cannot hold a BatchNorm group of {group} images; give at least {group}, "
                "more simulated_workers, or a smaller bn_group"
            )
        return requested
    if device.type != "cuda":
        fitting = int(_CPU_SHARE * _free_at_start() / ranks_here / bytes_per_image())
        if distributed.any_rank(fitting < group):
            raise _does_not_fit(group)
        return min(*distributed.all_gather(fitting), max(group, CPU_IMAGES), whole)
    return halve_until_it_fits(whole, group, try_pass)


def halve_until_it_fits(whole: int, group: int, try_pass: Callable[[int], None]) -> int:
    """The largest of whole, whole / 2, ... group images that `try_pass` runs on every rank."""
    at_most = whole
    while True:
        failed = False
        try:
            try_pass(at_most)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failed = True
        # After the handler, whose exception holds on to the tensors of the pass.
        if not distributed.any_rank(failed):
            return at_most
        torch.cuda.empty_cache()
        if at_most == group:
            raise _does_not_fit(group)
        at_most = max(group, at_most // 2)


def activation_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Memory that a forward pass of `model` in training mode keeps for its backward pass, without the weights."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = forward()
    for tensor in (*model.parameters(), *model.buffers()):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    del output  # until here it holds the noted storages
    return sum(kept.values())


def _does_not_fit(group: int) -> OutOfMemory:
    return OutOfMemory(
        f"micro_batch: auto, but one BatchNorm group of {group} images does not fit the memory; "
        "give more simulated_workers or a smaller bn_group, which change the result, or more memory"
    )
