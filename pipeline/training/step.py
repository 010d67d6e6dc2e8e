"""One optimizer step: learning rate, gradient, clipping, update, weight average."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.batching import GlobalBatch, RankBatch
from pipeline.distributed import World
from pipeline.models import NETWORKS
from pipeline.run_log import RunLog
from pipeline.training.exact_gradients import ExactGradients
from pipeline.training.gradients import (
    AveragedGradients,
    GradientStrategy,
    LocalGradients,
    SliceGradients,
    TrainLoss,
    average_weights,
)
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import TrainSettings
from pipeline.training.state import TrainState
from pipeline.training.step_graph import StepGraphs


class TrainStep:
    """Runs the optimizer steps of one run.

    Args:
        batches: by batch size, what this rank computes of a global batch.
        track_from_step: first step at which `state.confidence_tracker`, if not None, records the labels' probabilities;
            `state.dynamics_tracker` records from the first step on.
    """

    def __init__(
        self,
        settings: TrainSettings,
        state: TrainState,
        train_loss: TrainLoss,
        *,
        batches: Mapping[int, RankBatch],
        track_from_step: int,
        world: World,
        options: RunOptions,
        log: RunLog,
    ) -> None:
        self._settings, self._state, self._world = settings, state, world
        _set_up_lr(state.optimizer, world.device)
        self._train_loss = replace(train_loss, dynamics_tracker=state.dynamics_tracker)
        self._tracked_loss = replace(self._train_loss, confidence_tracker=state.confidence_tracker)
        self._track_from_step = track_from_step
        self._batches = batches
        self._slices = SliceGradients(state.model, world)
        self._exact = None
        if settings.reduction == "exact":
            self._exact = ExactGradients(
                state.model, world, options.comm, simulated_workers=settings.simulated_workers, grids=state.grids
            )
        # If the scaler makes the kernel of torch's fused SGD skip the first step, the momentum stays uninitialized.
        # With this flag, the scaler skips the call instead.
        state.optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
        wrapped: nn.Module = state.model
        if settings.reduction != "exact":
            self._averaged = AveragedGradients(state.model, world, options.comm, state.compression)
            self._local = LocalGradients(self._averaged.model, world)
            wrapped = self._averaged.model
        state.model.train()
        # A backward pass with an all-reduce is not captured.
        capturable = wrapped is state.model and _can_be_captured(settings, state)
        self._graphs = StepGraphs(
            state.model, options.capture_on(world.device) if capturable else None, log=log,
            update=partial(_update_weights, settings, state) if _lr_is_tensor(state.optimizer) else None,
        )  # fmt: skip

    def warm_up(self, batch: GlobalBatch) -> None:
        """Compute what the first step of a process computes differently, without a trace; before `run_step`.

        Args:
            batch: any two samples that the run trains on.
        """
        if self._exact is None:
            self._averaged.model.train()
            self._averaged.warm_up(replace(self._train_loss, dynamics_tracker=None), batch)
            self._state.model.train()

    def run_step(self, batch: GlobalBatch) -> None:
        """Run step `state.step`, counted from 0."""
        settings, state = self._settings, self._state
        local = settings.local_from_step is not None and state.step >= settings.local_from_step
        samples_noise = settings.noise_scale_steps is not None and state.step % settings.noise_scale_steps == 0

        # Learning rate: a pure function of the step.
        _set_lr(state.optimizer, settings.lr_at(state.step))

        # Forward and backward passes, micro-batch by micro-batch.
        train_loss = self._tracked_loss if state.step >= self._track_from_step else self._train_loss
        rank_batch = self._batches[batch.size]
        if samples_noise:
            self.release_graph()
        replayed = None if samples_noise else self._graphs.run(train_loss, batch, rank_batch.micro_batches)
        if replayed is not None:
            loss = replayed
        else:
            strategy = self._strategy(local=local, samples_noise=samples_noise)
            loss = strategy.compute(train_loss, batch, rank_batch, loss_scale=self._loss_scale())
            if samples_noise:
                assert isinstance(strategy, SliceGradients | ExactGradients)
                state.noise.append(strategy.noise_sample())
            if self._exact is not None:
                state.grids = self._exact.grids
        state.add_loss(loss, batch.size)

        # Update: once per global batch, however many micro-batches it has.
        skipped = False if replayed is not None and self._graphs.updates else self._update()
        if state.average and not skipped:
            state.average.update_parameters(state.model)

        state.step += 1
        if local and self.weights_in_sync_after(state.step):
            average_weights(state.model, self._world)

    def release_graph(self) -> None:
        """Release memory that captured steps keep and that other work may need."""
        self._graphs.release_graph()

    def weights_in_sync_after(self, step: int) -> bool:
        """Return whether all ranks have the same weights after the first `step` steps."""
        first, period = self._settings.local_from_step, self._settings.local_period
        return first is None or step <= first or (step - first) % period == 0 or step == self._settings.steps

    def _strategy(self, *, local: bool, samples_noise: bool) -> GradientStrategy:
        if self._exact is not None:
            return self._exact
        if samples_noise:
            return self._slices
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


def _clip_gradients(settings: TrainSettings, state: TrainState) -> None:
    if settings.clip_norm is not None:
        nn.utils.clip_grad_norm_(state.model.parameters(), settings.clip_norm)


def _update_weights(settings: TrainSettings, state: TrainState) -> None:
    _clip_gradients(settings, state)
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)


def _can_be_captured(settings: TrainSettings, state: TrainState) -> bool:
    """Return whether a step of this run is the same operations on one process, whatever the batch holds.

    Networks of timm and torchvision may do anything in their passes.
    """
    simple = settings.reduction == "ddp" and settings.local_from_step is None and not settings.compile
    return simple and state.scaler is None and settings.network in NETWORKS


def _set_up_lr(optimizer: Optimizer, device: torch.device) -> None:
    """Let the fused SGD of a GPU read its learning rate from there, as a captured update has to."""
    groups = optimizer.param_groups
    shared = device.type == "cuda" and isinstance(optimizer, torch.optim.SGD) and groups[0]["fused"]
    lr = torch.zeros((), device=device) if shared else 0.0
    for group in groups:
        group["lr"] = lr


def _set_lr(optimizer: Optimizer, lr: float) -> None:
    if _lr_is_tensor(optimizer):
        optimizer.param_groups[0]["lr"].fill_(lr)  # all groups share the tensor
        return
    for group in optimizer.param_groups:
        group["lr"] = lr


def _lr_is_tensor(optimizer: Optimizer) -> bool:
    return isinstance(optimizer.param_groups[0]["lr"], Tensor)
