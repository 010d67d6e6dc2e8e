"""The training loop of one run, from settings to weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline import distributed
from pipeline.batching import GlobalBatch, SampleStream
from pipeline.datasets.sources import TrainingImages
from pipeline.distributed import CommConfig, World
from pipeline.errors import explain_out_of_memory
from pipeline.models.layers import has_dropout
from pipeline.models.network import Network
from pipeline.run_log import RunLog
from pipeline.training.batch_plan import check_ranks, plan_batches, setup_oom_message, step_oom_message
from pipeline.training.dynamics import TrainingDynamics, first_tracked_step
from pipeline.training.eval_weights import EvalWeights
from pipeline.training.evaluation import Evaluation
from pipeline.training.gradients import TrainLoss
from pipeline.training.hash_chain import HashChain, link_is_due
from pipeline.training.noise_scale import NoiseScale, estimate_noise_scale
from pipeline.training.numerics import compile_network, mark_step_begin
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import TrainSettings
from pipeline.training.state import ChainLink, HistoryRecord, TrainState, start_state
from pipeline.training.step import TrainStep

_HISTORY_RECORDS = 20
"""A run of as many steps has 20 to 39 records: enough for a curve, and few enough that waiting for the device costs
nothing."""


class TrainData(NamedTuple):
    """The data set of a run.

    Attributes:
        images: of all N samples.
        labels: (N,) int64 of all samples, on the device.
        train_mask: (N,) bool, the samples to train on.
    """

    images: TrainingImages
    labels: Tensor
    train_mask: NDArray[np.bool_]


@dataclass(kw_only=True)
class TrainedRun:
    """A finished run.

    Attributes:
        links: its hash chain, see `hash_chain`; the last link is of the evaluated weights, unless the run diverged.
        divergence: where the loss stopped being finite, such as "from step 8 on, first on rank 1 of 2", which ended the
            run; None: it did not.
        skipped_steps: steps that the loss scaler skipped for a non-finite gradient.
        noise_scale: None unless it was sampled.
        micro_batch: samples that passed forward together, at most.
        hardware: descriptions of what the run ran on, in order, each once.
        confidence: (N,) float32, mean probability of each sample's label late in training (see
            `dynamics`), NaN for samples not trained on; None unless it was tracked.
        dynamics: margins and forgetting events of the whole training; None unless they were tracked.
        earlier_seconds: wall time of the interrupted processes before this one.
    """

    model: Network
    history: list[HistoryRecord]
    links: list[ChainLink]
    divergence: str | None
    skipped_steps: int
    noise_scale: NoiseScale | None
    micro_batch: int
    hardware: list[str]
    confidence: NDArray[np.float32] | None
    dynamics: TrainingDynamics | None
    earlier_seconds: float

    @property
    def diverged(self) -> bool:
        """Whether the loss stopped being finite."""
        return self.divergence is not None


def train(
    settings: TrainSettings,
    data: TrainData,
    *,
    world: World,
    log: RunLog,
    options: RunOptions | None = None,
    initialize: Callable[[Network], None] | None = None,
    eval_fn: Callable[[Network], Evaluation] | None = None,
    track_confidence: bool = False,
) -> TrainedRun:
    """Train a network; all ranks return the same weights.

    Args:
        options: None takes the defaults.
        initialize: overwrites fresh weights, e.g. by pretrained ones.
        eval_fn: evaluates a network on the test images, the same on all ranks; for settings that evaluate while
            training.
        track_confidence: return the mean probability and the training dynamics of each sample's label.

    Raises:
        InputError: the number of processes does not fit the simulated workers.
        OutOfMemory: a BatchNorm group, or a pass of `micro_batch` samples, does not fit the memory.
        Terminated: the process was asked to stop; the state is saved.
    """
    options = options or RunOptions()
    evaluates = settings.accuracy_steps is not None or settings.accuracy_examples is not None
    assert not evaluates or eval_fn is not None, "these settings need an eval_fn"
    check_ranks(settings, world, options.comm)
    distributed.set_collective_timeout(options.comm.timeout_seconds)
    precision = distributed.float32_arithmetic(tf32=settings.precision == "tf32", fast=settings.fast)
    with precision, explain_out_of_memory(setup_oom_message(settings)):
        micro_batch, comm, checkpointer = options.micro_batch, options.comm, options.checkpointer

        # State: fresh, or from the latest checkpoint.
        n_tracked = len(data.labels) if track_confidence else 0
        n_epochs = math.ceil(settings.batch_sizes.examples(settings.steps) / int(data.train_mask.sum()))
        state = start_state(settings, world, initialize, n_tracked_samples=n_tracked, n_tracked_epochs=n_epochs)
        if checkpointer is not None:
            checkpointer.resume(state, log)

        # Batches: the samples of each step, and this rank's micro-batches of them.
        train_loss = TrainLoss(
            images=data.images,
            labels=data.labels,
            label_smoothing=settings.label_smoothing,
            precision=settings.precision,
            seed=settings.seed,
            has_dropout=has_dropout(state.model),
        )
        stream, sizes = SampleStream(data.train_mask, settings.seed), settings.batch_sizes
        first_batch = GlobalBatch.from_stream(stream, start=0, size=settings.batch_size)
        # A resumed run keeps the micro-batch that it chose; an explicit request replaces it.
        if micro_batch == "auto" and state.micro_batch:
            micro_batch = state.micro_batch
        plan = plan_batches(settings, state, train_loss, first_batch, micro_batch=micro_batch, world=world, comm=comm)
        state.micro_batch = plan.micro_batch
        state.hardware = list(dict.fromkeys([*state.hardware, _hardware_text(world, plan.micro_batch, comm)]))

        # Step, evaluation weights and hash chain.
        cuda_graphs = settings.compile == "cuda_graphs"
        if settings.compile:
            compile_network(state.model, world.device, cuda_graphs=cuda_graphs)
        train_step = TrainStep(
            settings, state, train_loss, batches=plan.batches, world=world, options=options, log=log,
            track_from_step=first_tracked_step(settings.steps, stream.n_train, sizes),
        )  # fmt: skip
        train_step.warm_up(first_batch.first(2))
        eval_weights = EvalWeights(settings, state, train_loss, stream, plan.batches)
        chain = HashChain(state, SampleStream(data.train_mask, settings.seed), sizes, world)

        divergence: str | None = None
        record_every = max(1, settings.steps // _HISTORY_RECORDS)
        with (
            explain_out_of_memory(step_oom_message(settings, plan.micro_batch)),
            data.images.prefetch(plan.requests(stream, settings, state.step)),
            log.progress(options.title, settings.steps, "steps") as progress,
        ):
            progress.update(state.step)
            while state.step < settings.steps and divergence is None:
                if cuda_graphs:
                    mark_step_begin()
                start, size = sizes.examples(state.step), sizes.size_at(state.step)
                train_step.run_step(GlobalBatch.from_stream(stream, start=start, size=size))
                progress.update()

                evaluate_now = settings.evaluates_after(state.step)
                record_now = evaluate_now or state.step % record_every == 0 or state.step == settings.steps
                if record_now:
                    divergence = _add_record(state, settings, stream.n_train)
                if link_is_due(settings, state.step):
                    chain.add()
                if evaluate_now and divergence is None:
                    assert eval_fn is not None
                    train_step.release_graph()
                    with eval_weights.swapped_in():
                        state.history[-1] = state.history[-1].with_evaluation(eval_fn(state.model))
                if record_now and options.on_record is not None:
                    options.on_record(state.history)

                can_save = state.step < settings.steps and train_step.weights_in_sync_after(state.step)
                if checkpointer is not None and can_save and divergence is None:
                    checkpointer.maybe_save(state)

        noise_scale = estimate_noise_scale(state.noise) if settings.noise_scale_steps is not None else None
        confidence = state.confidence_tracker.result() if state.confidence_tracker else None
        train_step.release_graph()
        if divergence is None:
            with explain_out_of_memory(step_oom_message(settings, plan.micro_batch)):
                eval_weights.swap_in()
        state.model.eval()
        return TrainedRun(
            model=state.model,
            history=state.history,
            links=chain.close(),
            divergence=divergence,
            skipped_steps=state.skipped_steps,
            noise_scale=noise_scale,
            micro_batch=plan.micro_batch,
            hardware=state.hardware,
            confidence=confidence,
            dynamics=state.dynamics_tracker.result() if state.dynamics_tracker else None,
            earlier_seconds=state.earlier_seconds,
        )


def _hardware_text(world: World, micro_batch: int, comm: CommConfig) -> str:
    threads = "" if world.device.type == "cuda" else f" of {torch.get_num_threads()} threads"
    library = f" by {comm.library}" if world.size > 1 and comm.library != "ddp" else ""
    return f"{world.size} processes{threads} on {world.device.type}{library}, {micro_batch} images at a time"


def _add_record(state: TrainState, settings: TrainSettings, n_train: int) -> str | None:
    """Append a history record; returns where the loss stopped being finite, None if it is. All ranks call it."""
    loss = float(distributed.all_reduce_sum_(state.loss_sum.clone())) / state.loss_count
    divergence = None if math.isfinite(loss) else _divergence(state)
    state.begin_record()
    examples = settings.batch_sizes.examples(state.step)
    record = HistoryRecord(
        epoch=examples / n_train,
        step=state.step,
        examples=examples,
        train_loss=loss if divergence is None else None,
        lr=settings.lr_at(state.step - 1),
    )
    state.history.append(record)
    return divergence


def _divergence(state: TrainState) -> str:
    """Return where the loss stopped being finite; all ranks call it."""
    steps = distributed.all_gather_object(state.first_step_not_finite())
    first = min((step for step in steps if step is not None), default=state.step)
    ranks = [str(rank) for rank, step in enumerate(steps) if step == first]
    if len(steps) == 1:
        return f"from step {first} on"
    alike = len(ranks) == len(steps)
    where = f"on all {len(steps)} ranks at once" if alike else f"first on rank {', '.join(ranks)} of {len(steps)}"
    return f"from step {first} on, {where}"
