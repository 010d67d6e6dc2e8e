"""One training run from settings to weights."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline import distributed
from pipeline.batching import (
    BatchSlice,
    RankBatch,
    SampleStream,
    merge_micro_batches,
    rank_slices,
    split_groups,
    valid_world_sizes,
    worker_slices,
)
from pipeline.datasets.sources import BatchRequest, TrainingImages
from pipeline.distributed import CommConfig, World
from pipeline.errors import InputError, explain_out_of_memory
from pipeline.models.resnet import Network
from pipeline.run_log import RunLog
from pipeline.training.checkpointing import CheckpointScheduler
from pipeline.training.confidence import first_tracked_step
from pipeline.training.eval_weights import EvalWeights
from pipeline.training.evaluation import Evaluation
from pipeline.training.hash_chain import HashChain, link_is_due
from pipeline.training.memory import activation_bytes, choose_micro_batch
from pipeline.training.noise_scale import NoiseScale, estimate_noise_scale
from pipeline.training.numerics import compile_network, mark_step_begin
from pipeline.training.settings import TrainSettings
from pipeline.training.state import ChainLink, HistoryRecord, TrainState, start_state
from pipeline.training.step import GlobalBatch, TrainLoss, TrainStep

P = ParamSpec("P")
R = TypeVar("R")

# Of the parameters: two moments, a weight average and a bucket for the exchange; and what else that may take.
_COPIES = 4
_COPIES_WITHOUT_OVERLAP = 1
_POWERSGD_COPIES = 2
# Of networks that this process has measured: once for a study, not once for each of its cells.
_BYTES_PER_IMAGE: dict[object, float] = {}


@dataclass(kw_only=True)
class TrainedRun:
    """A finished run.

    Attributes:
        links: its hash chain, see `hash_chain`; the last one is of the end.
        diverged: the loss stopped being finite, which ended it.
        noise_scale: None unless it was sampled.
        micro_batch: images that passed forward at a time.
        confidence: (N,) float32, mean probability of each image's label late in training (see
            `confidence_track`), NaN for images not trained on; None unless it was asked for.
        earlier_seconds: wall time of the processes that an interrupted run had before this one.
    """

    model: Network
    history: list[HistoryRecord] = field(default_factory=list)
    links: list[ChainLink] = field(default_factory=list)
    diverged: bool = False
    skipped_steps: int = 0
    noise_scale: NoiseScale | None = None
    micro_batch: int = 0
    places: list[str] = field(default_factory=list)
    confidence: NDArray[np.float32] | None = None
    earlier_seconds: float = 0.0


def _with_settings_precision(
    function: Callable[Concatenate[TrainSettings, P], R],
) -> Callable[Concatenate[TrainSettings, P], R]:
    """Run `function` with the rounding of float32 that its settings ask for, and name them where memory runs out.

    See `float32_arithmetic`. Passes of a micro-batch say more; this is for what stands in memory before the first one.
    """

    @wraps(function)
    def inside(settings: TrainSettings, /, *args: P.args, **options: P.kwargs) -> R:
        in_its_precision = distributed.float32_arithmetic(tf32=settings.precision == "tf32")
        with in_its_precision, explain_out_of_memory(_too_large_to_begin(settings)):
            return function(settings, *args, **options)

    return inside


_SMALLER_GROUPS_HINT = "more simulated_workers or a smaller bn_group, which change the result"


def _largest_group(settings: TrainSettings) -> int:
    """Images of the largest BatchNorm group."""
    return max(size for parts in _workers(settings).values() for part in parts for size in part.group_sizes)


def _too_large_to_begin(settings: TrainSettings) -> str:
    """What to say where memory runs out before `micro_batch` has been chosen."""
    return (
        f"network {settings.network}: does not fit the memory, before the first step of a batch of "
        f"{settings.batch_size} in BatchNorm groups of {_largest_group(settings)}; choose a smaller network, "
        f"give {_SMALLER_GROUPS_HINT}, or end other programs"
    )


def _too_large(settings: TrainSettings, micro_batch: int) -> str:
    """What to say where memory runs out after `micro_batch` has been chosen."""
    group = _largest_group(settings)
    mend = f"give {_SMALLER_GROUPS_HINT}"
    if micro_batch > group and settings.reduction != "tree":
        mend = f"give micro_batch: {max(group, micro_batch // 2)}, at least {group}; or {mend.removeprefix('give ')}"
    return (
        f"micro_batch: a pass of {micro_batch} images, of a batch of {settings.batch_size} in BatchNorm groups of "
        f"{group}, does not fit the memory; {mend}. The run goes on from what it saved"
    )


@_with_settings_precision
def train(
    settings: TrainSettings,
    images: TrainingImages,
    labels: Tensor,
    members: NDArray[np.bool_],
    *,
    ranks: World,
    log: RunLog,
    title: str,
    initialise: Callable[[Network], None] | None = None,
    micro_batch: int | Literal["auto"] = "auto",
    transport: CommConfig | None = None,
    pauses: CheckpointScheduler | None = None,
    eval_fn: Callable[[Network], Evaluation] | None = None,
    track_confidence: bool = False,
) -> TrainedRun:
    """Train a network; all ranks return the same weights.

    Args:
        labels: (N,) int64 of the whole data set, on the device.
        members: (N,) bool, the rows to train on.
        title: of the progress display.
        initialise: overwrites fresh weights, e.g. by pretrained ones.
        micro_batch: images that pass forward at a time; changes the result by rounding alone.
        transport: of gradients; changes the result by rounding alone. None: torch's defaults.
        pauses: where to save the run's state and go on from; None: nowhere.
        eval_fn: of a network on test images, the same on all ranks, for settings that ask for it on the way.
        track_confidence: return how sure the network was of each image's label while it trained.

    Raises:
        InputError: the number of processes does not fit the simulated workers.
        OutOfMemory: a BatchNorm group, or a pass of so many images, does not fit the memory.
        Terminated: the process was asked to end, after the state was saved.
    """
    measured = settings.accuracy_steps is not None or settings.accuracy_examples is not None
    assert not measured or eval_fn is not None, "nobody to tell the accuracy"
    transport = transport or CommConfig()
    _check_ranks(settings, ranks)
    _check_compression(settings, ranks, transport)
    distributed.set_collective_timeout(transport.timeout_seconds)
    state = start_state(settings, ranks, initialise, n_tracked_images=len(labels) if track_confidence else 0)
    if pauses is not None:
        pauses.resume(state, ranks, log)
    objective = TrainLoss(
        images=images,
        labels=labels,
        label_smoothing=settings.label_smoothing,
        precision=settings.precision,
        seed=settings.seed,
    )
    stream = SampleStream(members, settings.seed)
    sizes = settings.batch_sizes
    workers = {
        size: rank_slices(parts, rank=ranks.rank, ranks=ranks.count) for size, parts in _workers(settings).items()
    }
    first = GlobalBatch.of(stream, start=0, size=settings.batch_size)
    # A run that goes on does so with what it chose, but what was asked for since goes before.
    if micro_batch == "auto" and state.micro_batch:
        micro_batch = state.micro_batch
    state.micro_batch = _micro_batch(settings, state, objective, first, workers, micro_batch, ranks, transport)
    graphs = settings.compile == "cuda_graphs"
    if settings.compile:
        compile_network(state.model, ranks.device, cuda_graphs=graphs)
    state.places = list(dict.fromkeys([*state.places, _hardware_text(ranks, state.micro_batch, transport)]))
    run = TrainedRun(model=state.model, micro_batch=state.micro_batch)
    batches = {size: _rank_batch(parts, settings, state.micro_batch) for size, parts in workers.items()}
    stepper = TrainStep(
        settings, state, objective, batches=batches, pair=_warmup_batch(first), ranks=ranks, transport=transport,
        track_from_step=first_tracked_step(settings.steps, stream.n_train, sizes),
    )  # fmt: skip
    # Twenty records a run: enough for a curve, and few enough not to hold up the device.
    record_every = max(1, settings.steps // 20)
    requests = _requests(stream, state.step, settings, batches)
    final = EvalWeights(settings, state, objective, stream, batches)
    chain = HashChain(state, SampleStream(members, settings.seed), sizes, ranks)
    too_large = _too_large(settings, state.micro_batch)
    with (
        explain_out_of_memory(too_large),
        images.prefetch(requests),
        log.progress(title, settings.steps, "steps") as progress,
    ):
        progress.update(state.step)
        while state.step < settings.steps and not run.diverged:
            if graphs:
                mark_step_begin()
            stepper.take(GlobalBatch.of(stream, start=sizes.examples(state.step), size=sizes.at(state.step)))
            progress.update()
            judged = settings.evaluates_after(state.step)
            if judged or state.step % record_every == 0 or state.step == settings.steps:
                run.diverged = not _record(state, settings, stream.n_train)
            if link_is_due(settings, state.step):
                chain.add()
            if judged and not run.diverged:
                assert eval_fn is not None
                with final.swapped_in():
                    state.history[-1] = _with_evaluation(state.history[-1], eval_fn(state.model))
            if (
                pauses is not None
                and state.step < settings.steps
                and stepper.weights_in_sync_after(state.step)
                and not run.diverged
            ):
                pauses.offer(state, local=settings.local_from_step is not None)
    run.history, run.skipped_steps, run.places = state.history, state.skipped_steps, state.places
    run.earlier_seconds = state.earlier_seconds
    run.noise_scale = estimate_noise_scale(state.noise) if settings.noise_scale_steps is not None else None
    run.confidence = state.track.means() if state.track else None
    if not run.diverged:
        with explain_out_of_memory(too_large):
            final.set()
    run.links = chain.close()
    return run


def _check_ranks(settings: TrainSettings, ranks: World) -> None:
    simulated = settings.simulated_workers
    fitting = valid_world_sizes(simulated, aligned=settings.reduction == "tree")
    if ranks.count not in fitting:
        why = "a power of two of" if settings.reduction == "tree" else "equally many of"
        raise InputError(
            f"workers: {ranks.count} processes cannot take {why} {simulated} simulated_workers each; "
            f"use one of {fitting}"
        )
    if settings.local_from_step is not None and ranks.count != simulated:
        raise InputError(
            f"post_local_sgd: {ranks.count} processes cannot stand in for simulated_workers {simulated}, since each "
            "steps on weights of its own; use as many"
        )


def _check_compression(settings: TrainSettings, ranks: World, transport: CommConfig) -> None:
    if settings.compression == "none":
        return
    assert transport.hierarchical == (settings.workers_per_node is not None), "who compresses is no matter of transport"
    simulated, per_node = settings.simulated_workers, settings.workers_per_node
    if ranks.count != simulated:
        raise InputError(
            f"communication.compression: {ranks.count} processes cannot stand in for simulated_workers {simulated}, "
            "since each compresses a gradient of its own; use as many"
        )
    sizes = [len(node) for node in distributed.ranks_by_node()]
    if per_node is not None and sizes != [per_node] * (simulated // per_node):
        raise InputError(
            f"communication.workers_per_node: {per_node}, but the nodes run {sizes} processes, and each compresses "
            f"their mean gradient; run {per_node} on each of {simulated // per_node}"
        )


def _workers(settings: TrainSettings) -> dict[int, list[BatchSlice]]:
    """By batch size, the parts of the simulated workers."""
    return {
        size: worker_slices(size, settings.simulated_workers, settings.bn_group) for size in settings.batch_sizes.all
    }


def _rank_batch(workers: list[BatchSlice], settings: TrainSettings, micro_batch: int) -> RankBatch:
    if settings.reduction == "tree":
        return RankBatch(leaves=workers, passes=workers)
    # To tell the noise of gradients, the finest parts that have one of their own.
    groups = [group for worker in workers for group in split_groups(worker)]
    return RankBatch(leaves=groups, passes=merge_micro_batches(workers, micro_batch))


def _requests(
    stream: SampleStream, first_step: int, settings: TrainSettings, batches: Mapping[int, RankBatch]
) -> Iterator[BatchRequest]:
    """What this rank will ask for, pass by pass."""
    for step in range(first_step, settings.steps):
        size = settings.batch_sizes.at(step)
        ids, epochs = stream.samples(settings.batch_sizes.examples(step), size)
        for part in batches[size].passes:
            yield ids[part.rows], epochs[part.rows]


def _warmup_batch(batch: GlobalBatch) -> GlobalBatch:
    return GlobalBatch(ids=batch.ids[:2], epochs=batch.epochs[:2])


def _hardware_text(ranks: World, micro_batch: int, transport: CommConfig) -> str:
    threads = "" if ranks.device.type == "cuda" else f" of {torch.get_num_threads()} threads"
    library = f" by {transport.library}" if ranks.count > 1 and transport.library != "ddp" else ""
    return f"{ranks.count} processes{threads} on {ranks.device.type}{library}, {micro_batch} images at a time"


def _micro_batch(
    settings: TrainSettings,
    state: TrainState,
    objective: TrainLoss,
    batch: GlobalBatch,
    workers: Mapping[int, list[BatchSlice]],
    micro_batch: int | Literal["auto"],
    ranks: World,
    transport: CommConfig,
) -> int:
    """Images that pass forward together, at most; `workers` are this rank's, by batch size."""
    if settings.reduction == "tree":
        return max(part.size for parts in workers.values() for part in parts)
    state.model.train()
    group = BatchSlice(rows=slice(0, 2), group_sizes=(2,))

    copies = _COPIES if transport.overlap else _COPIES + _COPIES_WITHOUT_OVERLAP
    if settings.compression == "powersgd":
        copies += _POWERSGD_COPIES

    def try_pass(at_most: int) -> None:
        # What the optimizer and the exchange of gradients will take is there in the first step at last.
        reserved = [torch.empty_like(parameter) for parameter in state.model.parameters() for _ in range(copies)]
        objective.loss_sum(state.model, batch, merge_micro_batches(workers[batch.size], at_most)[0]).backward()
        state.model.zero_grad(set_to_none=True)
        del reserved

    def bytes_per_image() -> float:
        key = (settings.network, settings.stem, settings.n_classes, settings.format, settings.precision, ranks.device)
        if key not in _BYTES_PER_IMAGE:
            kept = activation_bytes(state.model, partial(objective.loss_sum, state.model, batch, group))
            _BYTES_PER_IMAGE[key] = kept / group.size
        return _BYTES_PER_IMAGE[key]

    return choose_micro_batch(
        micro_batch,
        list(workers.values()),
        device=ranks.device,
        bytes_per_image=bytes_per_image,
        try_pass=try_pass,
        local_world_size=distributed.local_world_size(),
    )


def _with_evaluation(record: HistoryRecord, found: Evaluation) -> HistoryRecord:
    return replace(record, top1=found.top1, test_loss=found.loss if math.isfinite(found.loss) else None)


def _record(state: TrainState, settings: TrainSettings, n_train: int) -> bool:
    """Add to the history; returns whether the loss is finite."""
    loss = float(distributed.all_reduce_sum_(state.loss_sum)) / state.counted
    state.loss_sum.zero_()
    state.counted = 0
    finite = math.isfinite(loss)
    examples = settings.batch_sizes.examples(state.step)
    record = HistoryRecord(
        epoch=examples / n_train,
        step=state.step,
        examples=examples,
        train_loss=loss if finite else None,
        lr=settings.rate(state.step - 1),
    )
    state.history.append(record)
    return finite
