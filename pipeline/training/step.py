"""One optimizer step: the gradient of a global batch, and what acts once per step on it."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from pipeline import distributed
from pipeline.batching import Part, RankBatch
from pipeline.distributed import Ranks, Transport
from pipeline.training.compiling import eager
from pipeline.training.gradient import GlobalBatch, Objective, accumulate_gradients, tree_gradients
from pipeline.training.noise_scale import NoiseSample
from pipeline.training.settings import TrainSettings
from pipeline.training.state import TrainState


class Stepper:
    """Takes the steps of one run.

    Args:
        batches: how this rank computes a batch of each size.
        pair: any two images that the run trains on.
        track_from: the step from which `state.track`, if there is one, notes labels' probabilities.
    """

    def __init__(
        self,
        settings: TrainSettings,
        state: TrainState,
        objective: Objective,
        *,
        batches: Mapping[int, RankBatch],
        pair: GlobalBatch,
        track_from: int,
        ranks: Ranks,
        transport: Transport,
    ) -> None:
        self._settings, self._state, self._objective = settings, state, objective
        self._tracking, self._track_from = replace(objective, track=state.track), track_from
        self._batches, self._ranks = batches, ranks
        tree = settings.reduction == "tree"
        self._parallel: nn.Module = state.model
        if not tree:
            self._parallel = distributed.data_parallel(state.model, ranks.device, transport, state.compression)
        self._parallel.train()
        # The scaler leaves a step out, not the kernel: torch's fused SGD, told to skip its first
        # step, goes on with whatever the memory of its momentum held.
        state.optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
        if not tree and ranks.count > 1 and transport.overlap and transport.library == "ddp":
            with eager():
                self._settle_buckets(pair)

    def take(self, batch: GlobalBatch) -> None:
        """Step `state.step`, counted from 0."""
        settings, state = self._settings, self._state
        for group in state.optimizer.param_groups:
            group["lr"] = settings.rate(state.step)
        metered = settings.noise_scale_steps is not None and state.step % settings.noise_scale_steps == 0
        local = settings.local_from_step is not None and state.step >= settings.local_from_step
        objective = self._tracking if state.step >= self._track_from else self._objective
        if settings.reduction == "tree" or metered:
            self._tree_step(objective, batch, metered=metered)
        else:
            state.loss_sum += accumulate_gradients(
                self._parallel, objective, batch, self._batches[batch.size].passes,
                ranks=self._ranks.count, local=local, loss_scale=self._loss_scale(),
            )  # fmt: skip
        self._update()
        state.step += 1
        state.counted += batch.size
        if local and self.averages_after(state.step):
            for parameter in state.model.parameters():
                distributed.all_reduce_sum_(parameter.data).div_(self._ranks.count)

    def averages_after(self, step: int) -> bool:
        """Whether all ranks have the same weights after so many steps."""
        first, period = self._settings.local_from_step, self._settings.local_period
        return first is None or step <= first or (step - first) % period == 0 or step == self._settings.steps

    def _tree_step(self, objective: Objective, batch: GlobalBatch, *, metered: bool) -> None:
        leaves = self._batches[batch.size].leaves
        sums = tree_gradients(self._state.model, objective, batch, leaves, loss_scale=self._loss_scale())
        # The sum of all ranks, which records add up over ranks.
        self._state.loss_sum += sums.loss if self._ranks.is_main else torch.zeros_like(sums.loss)
        if metered:
            sample = NoiseSample(
                small_batch=batch.size / (len(leaves) * self._ranks.count),
                big_batch=batch.size,
                mean_small_sq_norm=float(sums.leaf_square),
                big_sq_norm=float(sums.square),
            )
            self._state.noise.append(sample)

    def _loss_scale(self) -> float | Tensor:
        scaler = self._state.scaler
        return scaler.scale(torch.ones((), device=self._ranks.device)) if scaler else 1.0

    def _update(self) -> None:
        """Unscale, clip, step, average: once per global batch, whatever it was computed in."""
        settings, state = self._settings, self._state
        if state.scaler:
            state.scaler.unscale_(state.optimizer)
        if settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(state.model.parameters(), settings.clip_norm)
        skipped = False
        if state.scaler:
            before = state.scaler.get_scale()
            state.scaler.step(state.optimizer)
            state.scaler.update()
            # The scale falls after a step that was left out, and only then.
            skipped = state.scaler.get_scale() < before
            state.skipped_steps += skipped
        else:
            state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        if state.average and not skipped:
            state.average.update_parameters(state.model)

    def _settle_buckets(self, pair: GlobalBatch) -> None:
        """Two backward passes for nothing: DistributedDataParallel orders its buckets anew after the first.

        Without them the first step of a resumed run would add in another order than the same step
        of a run that was never interrupted.
        """
        for _ in range(2):
            self._objective.loss_sum(self._parallel, pair, Part(rows=slice(0, 2), group_sizes=(2,))).backward()
            self._state.optimizer.zero_grad(set_to_none=True)
