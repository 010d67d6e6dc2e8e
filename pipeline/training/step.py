"""One optimizer step: learning rate, gradient, clipping, update, weight average."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from pipeline.batching import RankBatch
from pipeline.distributed import CommConfig, World
from pipeline.training.exact_gradients import ExactGradients
from pipeline.training.gradients import (
    AveragedGradients,
    GlobalBatch,
    GradientStrategy,
    LeafGradients,
    LocalGradients,
    TrainLoss,
    average_weights,
)
from pipeline.training.settings import TrainSettings
from pipeline.training.state import TrainState


class TrainStep:
    """Runs the optimizer steps of one run.

    Args:
        batches: by batch size, what this rank computes of a global batch.
        warmup_batch: any two samples that the run trains on.
        track_from_step: first step at which `state.tracker`, if not None, records the labels' probabilities;
            `state.dynamics` records from the first step on.
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
    ) -> None:
        self._settings, self._state, self._world = settings, state, world
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
        for group in state.optimizer.param_groups:
            group["lr"] = settings.lr_at(state.step)

        # Forward and backward passes, micro-batch by micro-batch.
        train_loss = self._tracked_loss if state.step >= self._track_from_step else self._train_loss
        strategy = self._strategy(local=local, samples_noise=samples_noise)
        state.loss_sum += strategy.compute(train_loss, batch, self._batches[batch.size], loss_scale=self._loss_scale())
        if samples_noise:
            assert isinstance(strategy, LeafGradients | ExactGradients)
            state.noise.append(strategy.noise_sample())
        if self._exact is not None:
            state.grids = self._exact.grids

        # Update: once per global batch, however many micro-batches it has.
        if state.scaler:
            state.scaler.unscale_(state.optimizer)
        if settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(state.model.parameters(), settings.clip_norm)
        skipped = self._optimizer_step()
        state.optimizer.zero_grad(set_to_none=True)
        if state.average and not skipped:
            state.average.update_parameters(state.model)

        state.step += 1
        state.loss_count += batch.size
        if local and self.weights_in_sync_after(state.step):
            average_weights(state.model, self._world)

    def weights_in_sync_after(self, step: int) -> bool:
        """Return whether all ranks have the same weights after the first `step` steps."""
        first, period = self._settings.local_from_step, self._settings.local_period
        return first is None or step <= first or (step - first) % period == 0 or step == self._settings.steps

    def _strategy(self, *, local: bool, samples_noise: bool) -> GradientStrategy:
        if self._exact is not None:
            return self._exact
        if samples_noise:
            return self._leaves
        return self._local if local else self._averaged

    def _loss_scale(self) -> float | Tensor:
        scaler = self._state.scaler
        return scaler.scale(torch.ones((), device=self._world.device)) if scaler else 1.0

    def _optimizer_step(self) -> bool:
        """Take the optimizer's step; returns whether the scaler skipped it for a non-finite gradient."""
        state = self._state
        if state.scaler is None:
            state.optimizer.step()
            return False
        stepped: list[bool] = []
        hook = state.optimizer.register_step_post_hook(lambda *_: stepped.append(True))
        # Reads from the device once, whether a gradient is not finite. Reading the scale would wait twice more.
        state.scaler.step(state.optimizer)
        hook.remove()
        state.scaler.update()
        state.skipped_steps += not stepped
        return not stepped
