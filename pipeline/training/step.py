"""One optimizer step: learning rate, gradient, clipping, update, weight average."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.batching import BatchSlice, RankBatch
from pipeline.distributed import CommConfig, World
from pipeline.errors import is_out_of_memory
from pipeline.training.exact_gradients import ExactGradients
from pipeline.training.gradients import (
    AveragedGradients,
    GlobalBatch,
    GradientStrategy,
    LeafGradients,
    LocalGradients,
    PassInputs,
    TrainLoss,
    average_weights,
)
from pipeline.training.settings import TrainSettings
from pipeline.training.state import TrainState
from pipeline.training.step_graph import Recorder, StepGraph, free_bytes, reserved_bytes


class TrainStep:
    """Runs the optimizer steps of one run.

    Args:
        batches: by batch size, what this rank computes of a global batch.
        warmup_batch: any two samples that the run trains on.
        track_from_step: first step at which `state.tracker`, if not None, records the labels' probabilities;
            `state.dynamics` records from the first step on.
        record: records the steps that it can as graphs, see `step_graph`; None records none.
        say: prints a line for people.
    """

    def __init__(
        self,
        settings: TrainSettings,
        state: TrainState,
        train_loss: TrainLoss,
        *,
        batches: Mapping[int, RankBatch],
        warmup_batch: GlobalBatch,
        track_from_step: int,
        world: World,
        comm: CommConfig,
        record: Recorder | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._settings, self._state, self._world, self._say = settings, state, world, say
        _set_up_learning_rate(state, world)
        self._train_loss = replace(train_loss, dynamics=state.dynamics)
        self._tracked_loss, self._track_from_step = replace(self._train_loss, tracker=state.tracker), track_from_step
        self._batches = batches
        self._leaves = LeafGradients(state.model, world)
        self._exact = None
        if settings.reduction == "exact":
            self._exact = ExactGradients(
                state.model, world, comm, simulated_workers=settings.simulated_workers, grids=state.grids
            )
        # If the scaler makes the kernel of torch's fused SGD skip the first step, the momentum stays uninitialized.
        # With this flag, the scaler skips the call instead.
        state.optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
        self._record = record if _can_record(settings, state, world) else None
        # Of steps of one batch size that all track the labels, or that all do not.
        self._graph: _RecordedStep | None = None
        self._graph_key: tuple[int, bool] | None = None
        if settings.reduction == "exact":
            state.model.train()
            return
        self._averaged = AveragedGradients(state.model, world, comm, state.compression)
        self._averaged.model.train()
        self._local = LocalGradients(self._averaged.model, world)
        self._averaged.warm_up(train_loss, warmup_batch)

    def run_step(self, batch: GlobalBatch) -> None:
        """Run step `state.step`, counted from 0."""
        settings, state = self._settings, self._state
        local = settings.local_from_step is not None and state.step >= settings.local_from_step
        samples_noise = settings.noise_scale_steps is not None and state.step % settings.noise_scale_steps == 0

        # Learning rate: a pure function of the step.
        _set_learning_rate(state.optimizer, settings.lr_at(state.step))

        # Forward and backward passes, micro-batch by micro-batch.
        tracked = state.tracker is not None and state.step >= self._track_from_step
        train_loss = self._tracked_loss if tracked else self._train_loss
        graph = None if samples_noise else self._graph_of(batch, train_loss, tracked=tracked)
        if graph is not None:
            state.loss_sum += graph.run(train_loss.load(batch, self._batches[batch.size].micro_batches[0]))
        else:
            strategy = self._strategy(local=local, samples_noise=samples_noise)
            rank_batch = self._batches[batch.size]
            state.loss_sum += strategy.compute(train_loss, batch, rank_batch, loss_scale=self._loss_scale())
            if samples_noise:
                assert isinstance(strategy, LeafGradients | ExactGradients)
                state.noise.append(strategy.noise_sample())
            if self._exact is not None:
                state.grids = self._exact.grids

        # Update: once per global batch, however many micro-batches it has.
        skipped = False if graph is not None and graph.updates else self._update()
        if state.average and not skipped:
            state.average.update_parameters(state.model)

        state.step += 1
        state.loss_count += batch.size
        if local and self.weights_in_sync_after(state.step):
            average_weights(state.model, self._world)

    def make_room(self) -> None:
        """Release the recorded step if its memory may be needed; a later step records it again."""
        if self._graph is not None and free_bytes(self._world.device) < self._graph.n_bytes:
            self._graph = None

    def weights_in_sync_after(self, step: int) -> bool:
        """Return whether all ranks have the same weights after the first `step` steps."""
        first, period = self._settings.local_from_step, self._settings.local_period
        return first is None or step <= first or (step - first) % period == 0 or step == self._settings.steps

    def _graph_of(self, batch: GlobalBatch, train_loss: TrainLoss, *, tracked: bool) -> "_RecordedStep | None":
        """Return the graph of a step on `batch`; None for one that is not recorded."""
        micro_batches, key = self._batches[batch.size].micro_batches, (batch.size, tracked)
        if self._record is None or len(micro_batches) != 1:
            return None
        if key != self._graph_key:
            # The first such step runs as it is: torch's libraries and the optimizer's state start with it.
            self._graph_key, self._graph = key, None
        elif self._graph is None:
            self._graph = self._recorded(batch, train_loss, micro_batches[0])
        return self._graph

    def _recorded(self, batch: GlobalBatch, train_loss: TrainLoss, part: BatchSlice) -> "_RecordedStep | None":
        """Record a step; without the memory for it, this step and the later ones stay plain."""
        assert self._record is not None, "nothing is recorded"
        try:
            return _RecordedStep(self._settings, self._state, train_loss, batch, part, self._record)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside the handler, whose exception keeps tensors alive.
        self._record = None
        self._state.optimizer.zero_grad(set_to_none=True)
        self._say(
            f"the memory does not hold a CUDA graph of a step of {batch.size} images; steps are launched one by one"
        )
        return None

    def _strategy(self, *, local: bool, samples_noise: bool) -> GradientStrategy:
        if self._exact is not None:
            return self._exact
        if samples_noise:
            return self._leaves
        return self._local if local else self._averaged

    def _loss_scale(self) -> float | Tensor:
        scaler = self._state.scaler
        return scaler.scale(torch.ones((), device=self._world.device)) if scaler else 1.0

    def _update(self) -> bool:
        """Update the weights by their gradients; returns whether the scaler skipped it for a non-finite one."""
        state = self._state
        if state.scaler is None:
            _update_weights(self._settings, state)
            return False
        state.scaler.unscale_(state.optimizer)
        _clip_gradients(self._settings, state)
        stepped: list[bool] = []
        hook = state.optimizer.register_step_post_hook(lambda *_: stepped.append(True))
        # Reads from the device once, whether a gradient is not finite. Reading the scale would wait twice more.
        state.scaler.step(state.optimizer)
        hook.remove()
        state.scaler.update()
        state.optimizer.zero_grad(set_to_none=True)
        state.skipped_steps += not stepped
        return not stepped


class _RecordedStep:
    """The graph of a step: both passes, and the update where the optimizer reads all that changes from the device.

    Attributes:
        updates: the graph has the update.
        n_bytes: memory of the GPU that it keeps, about as much as a plain step needs.
    """

    def __init__(
        self,
        settings: TrainSettings,
        state: TrainState,
        train_loss: TrainLoss,
        batch: GlobalBatch,
        part: BatchSlice,
        record: Recorder,
    ) -> None:
        self.updates = _reads_lr_from_device(state.optimizer)

        def work(inputs: PassInputs) -> Tensor:
            loss = train_loss.loss_of(state.model, inputs, part.group_sizes)
            (loss * (1 / batch.size)).backward()
            if self.updates:
                _update_weights(settings, state)
            return loss.detach()

        before = reserved_bytes(state.loss_sum.device)
        self._graph = StepGraph(work, train_loss.load(batch, part), record)
        self.n_bytes = reserved_bytes(state.loss_sum.device) - before
        # The graph writes the gradients to this memory, and the update that follows it forgets them.
        self._gradients = [(parameter, parameter.grad) for parameter in state.model.parameters()]

    def run(self, inputs: PassInputs) -> Tensor:
        """Run the step; returns the sum of the losses, 0-dimensional."""
        loss = self._graph.run(inputs)
        if not self.updates:
            for parameter, gradient in self._gradients:
                parameter.grad = gradient
        return loss


def _can_record(settings: TrainSettings, state: TrainState, world: World) -> bool:
    """Return whether the passes of a step are the same operations on one process whatever the batch holds."""
    simple = settings.reduction == "ddp" and settings.local_from_step is None and not settings.compile
    return world.size == 1 and simple and state.scaler is None


def _set_up_learning_rate(state: TrainState, world: World) -> None:
    """Let the fused SGD of a GPU read its learning rate from there, which the graph of a step needs."""
    shared = world.device.type == "cuda" and isinstance(state.optimizer, torch.optim.SGD)
    rate = torch.zeros((), device=world.device) if shared else 0.0
    for group in state.optimizer.param_groups:
        group["lr"] = rate


def _set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    if _reads_lr_from_device(optimizer):
        optimizer.param_groups[0]["lr"].fill_(rate)  # all groups share the tensor
        return
    for group in optimizer.param_groups:
        group["lr"] = rate


def _reads_lr_from_device(optimizer: Optimizer) -> bool:
    return isinstance(optimizer.param_groups[0]["lr"], Tensor)


def _clip_gradients(settings: TrainSettings, state: TrainState) -> None:
    if settings.clip_norm is not None:
        nn.utils.clip_grad_norm_(state.model.parameters(), settings.clip_norm)


def _update_weights(settings: TrainSettings, state: TrainState) -> None:
    _clip_gradients(settings, state)
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
