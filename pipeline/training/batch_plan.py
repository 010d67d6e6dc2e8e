"""Plan the batches of a run: this rank's part of each global batch, its micro-batches, and whether the ranks fit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from pipeline import distributed
from pipeline.batching import (
    BatchSlice,
    GlobalBatch,
    RankBatch,
    SampleStream,
    merge_micro_batches,
    rank_slices,
    split_groups,
    valid_world_sizes,
    worker_slices,
)
from pipeline.datasets.sources import BatchRequest
from pipeline.distributed import CommConfig, World
from pipeline.errors import InputError
from pipeline.training.gradients import TrainLoss
from pipeline.training.homogeneous_ranks import check_homogeneous_ranks
from pipeline.training.memory import activation_bytes, choose_micro_batch
from pipeline.training.settings import TrainSettings
from pipeline.training.state import TrainState

# Copies of the parameters that the first step adds: two moments, a weight average and a bucket for the exchange.
_COPIES = 4
_COPIES_WITHOUT_OVERLAP = 1
_POWERSGD_COPIES = 2
# Activation bytes of the networks that this process has measured: once for a study, not once for each run.
_BYTES_PER_SAMPLE: dict[object, float] = {}

_SMALLER_GROUPS_HINT = "more simulated_workers or a smaller bn_group, which change the result"


def check_ranks(settings: TrainSettings, world: World, comm: CommConfig) -> None:
    """Check that these processes can run the job; all ranks call it.

    Raises:
        InputError: the number of processes, or of those on a node, does not fit the simulated workers; or they are not
            of one kind, see `check_homogeneous_ranks`.
    """
    simulated = settings.simulated_workers
    valid = valid_world_sizes(simulated, settings.reduction)
    if world.size not in valid:
        why = {"ddp": "equally many of", "exact": "one or more of"}[settings.reduction]
        raise InputError(
            f"workers: {world.size} processes cannot take {why} {simulated} simulated_workers each; use one of {valid}"
        )
    if settings.local_from_step is not None and world.size != simulated:
        raise InputError(
            f"post_local_sgd: {world.size} processes cannot run simulated_workers {simulated}, since each has separate "
            f"weights; use {simulated}"
        )
    if settings.compression != "none":
        _check_compression(settings, world, comm)
    if settings.reduction == "exact" and world.size > 1:
        check_homogeneous_ranks(world.device)


def _check_compression(settings: TrainSettings, world: World, comm: CommConfig) -> None:
    assert comm.hierarchical == (settings.workers_per_node is not None), "the settings decide who compresses"
    simulated, per_node = settings.simulated_workers, settings.workers_per_node
    if world.size != simulated:
        raise InputError(
            f"communication.compression: {world.size} processes cannot run simulated_workers {simulated}, since each "
            f"compresses a separate gradient; use {simulated}"
        )
    sizes = [len(node) for node in distributed.ranks_by_node()]
    if per_node is not None and sizes != [per_node] * (simulated // per_node):
        raise InputError(
            f"communication.workers_per_node: {per_node}, but the nodes run {sizes} processes, and each compresses "
            f"their mean gradient; run {per_node} on each of {simulated // per_node}"
        )


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The parts of a run's batches that this rank computes.

    Attributes:
        batches: by batch size, this rank's part of a global batch.
        micro_batch: samples that pass forward together, at most.
    """

    batches: Mapping[int, RankBatch]
    micro_batch: int

    def requests(self, stream: SampleStream, settings: TrainSettings, first_step: int) -> Iterator[BatchRequest]:
        """Yield this rank's requests for images from `first_step` on, one micro-batch at a time."""
        for step in range(first_step, settings.steps):
            size = settings.batch_sizes.size_at(step)
            sample_ids, epochs = stream.samples(settings.batch_sizes.examples(step), size)
            for micro_batch in self.batches[size].micro_batches:
                yield sample_ids[micro_batch.rows], epochs[micro_batch.rows]


def plan_batches(
    settings: TrainSettings,
    state: TrainState,
    train_loss: TrainLoss,
    first_batch: GlobalBatch,
    *,
    micro_batch: int | Literal["auto"],
    world: World,
    comm: CommConfig,
) -> BatchPlan:
    """Choose the micro-batch and split the global batches into this rank's parts; all ranks call it.

    Raises:
        InputError: a BatchNorm group is larger than `micro_batch`.
        OutOfMemory: a BatchNorm group does not fit the memory.
    """
    workers = _worker_slices(settings)
    slices = {size: rank_slices(parts, rank=world.rank, world_size=world.size) for size, parts in workers.items()}
    if settings.reduction == "exact":
        # Over all ranks, so that it depends on no division.
        largest = max(part.size for parts in workers.values() for part in parts)
        batches = {size: RankBatch(slices=parts, micro_batches=parts) for size, parts in slices.items()}
        return BatchPlan(batches=batches, micro_batch=largest)
    probe = MemoryProbe(settings, state, train_loss, first_batch, slices[first_batch.size], comm)
    chosen = choose_micro_batch(
        micro_batch,
        list(slices.values()),
        device=world.device,
        bytes_per_sample=partial(probe.bytes_per_sample, world.device),
        try_pass=probe.try_pass,
        local_world_size=distributed.local_world_size(),
    )
    return BatchPlan(batches={size: _rank_batch(parts, chosen) for size, parts in slices.items()}, micro_batch=chosen)


def _worker_slices(settings: TrainSettings) -> dict[int, list[BatchSlice]]:
    """Return the slice of each simulated worker, by batch size."""
    return {
        size: worker_slices(size, settings.simulated_workers, settings.bn_group) for size in settings.batch_sizes.unique
    }


def _rank_batch(workers: Sequence[BatchSlice], micro_batch: int) -> RankBatch:
    # The noise of gradients is measured between the finest parts that have a gradient: the BatchNorm groups.
    groups = [group for worker in workers for group in split_groups(worker)]
    return RankBatch(slices=groups, micro_batches=merge_micro_batches(workers, micro_batch))


class MemoryProbe:
    """Measures the memory of forward and backward passes of the run; `slices` are this rank's part of `batch`."""

    def __init__(
        self,
        settings: TrainSettings,
        state: TrainState,
        train_loss: TrainLoss,
        batch: GlobalBatch,
        slices: Sequence[BatchSlice],
        comm: CommConfig,
    ) -> None:
        self._settings, self._model, self._train_loss = settings, state.model, train_loss
        self._batch, self._slices = batch, slices
        self._copies = _COPIES if comm.overlap else _COPIES + _COPIES_WITHOUT_OVERLAP
        if settings.compression == "powersgd":
            self._copies += _POWERSGD_COPIES
        self._model.train()

    def try_pass(self, max_size: int) -> None:
        """Run a forward and a backward pass of at most `max_size` samples, with memory reserved for the optimizer."""
        # Optimizer state and exchange buffers exist from the end of the first step on.
        reserved = [torch.empty_like(parameter) for parameter in self._model.parameters() for _ in range(self._copies)]
        part = merge_micro_batches(self._slices, max_size)[0]
        self._train_loss.summed_loss(self._model, self._batch, part).backward()
        self._model.zero_grad(set_to_none=True)
        del reserved

    def bytes_per_sample(self, device: torch.device) -> float:
        """Return the bytes of activations that a forward pass keeps for its backward pass, per sample."""
        settings = self._settings
        key = (settings.network, settings.stem, settings.n_classes, settings.format, settings.precision, device)
        if key not in _BYTES_PER_SAMPLE:
            warmup_slice = BatchSlice(rows=slice(0, 2), group_sizes=(2,))
            forward = partial(self._train_loss.summed_loss, self._model, self._batch, warmup_slice)
            _BYTES_PER_SAMPLE[key] = activation_bytes(self._model, forward) / warmup_slice.size
        return _BYTES_PER_SAMPLE[key]


def setup_oom_message(settings: TrainSettings) -> str:
    """Return the error message for memory that runs out before a micro-batch has been chosen."""
    return (
        f"network {settings.network}: does not fit the memory, before the first step of a batch of "
        f"{settings.batch_size} in BatchNorm groups of {_largest_group(settings)}; choose a smaller network, "
        f"give {_SMALLER_GROUPS_HINT}, or end other programs"
    )


def step_oom_message(settings: TrainSettings, micro_batch: int) -> str:
    """Return the error message for memory that runs out in passes of `micro_batch` samples."""
    if settings.reduction == "exact":  # passes all images of a simulated worker, whatever its groups
        return (
            f"simulated_workers: {settings.simulated_workers}, so that {micro_batch} images of a batch of "
            f"{settings.batch_size} pass at once with reduction exact, and do not fit the memory; give more workers, "
            "which changes the result"
        )
    group = _largest_group(settings)
    fix = f"give {_SMALLER_GROUPS_HINT}"
    if micro_batch > group:
        smaller = f"give micro_batch: {max(group, micro_batch // 2)}, at least {group}, and the run resumes"
        fix = f"{smaller}; or {_SMALLER_GROUPS_HINT}"
    return (
        f"micro_batch: a pass of {micro_batch} images, of a batch of {settings.batch_size} in BatchNorm groups of "
        f"{group}, does not fit the memory; {fix}"
    )


def _largest_group(settings: TrainSettings) -> int:
    """Return the samples of the largest BatchNorm group."""
    return max(size for parts in _worker_slices(settings).values() for part in parts for size in part.group_sizes)
