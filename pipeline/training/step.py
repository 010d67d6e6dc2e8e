"""One training step: gradients of micro-batches, clipping, the optimizer's update."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline import distributed
from pipeline.batching import BatchSlice, RankBatch, SampleStream
from pipeline.datasets.sources import TrainingImages
from pipeline.distributed import CommConfig, World
from pipeline.models.layers import sample_keys, set_batch_context
from pipeline.training.confidence import ConfidenceTracker
from pipeline.training.noise_scale import NoiseSample
from pipeline.training.numerics import Precision, autocast, compile_disabled
from pipeline.training.settings import TrainSettings
from pipeline.training.state import TrainState

# The gradient of one global batch, exact for any number of processes.


@dataclass(frozen=True, kw_only=True)
class GlobalBatch:
    """Sample ids and the epoch of each, both (B,), the same on all ranks."""

    ids: NDArray[np.int64]
    epochs: NDArray[np.int64]

    @classmethod
    def of(cls, stream: SampleStream, *, start: int, size: int) -> Self:
        """From sample `start` of the stream on, counted from 0."""
        ids, epochs = stream.samples(start, size)
        return cls(ids=ids, epochs=epochs)

    @property
    def size(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class TrainLoss:
    """What is minimised: the loss of any part of a global batch.

    Attributes:
        labels: (N,) int64 of the whole data set, on the device.
        seed: of dropout.
        track: what notes the probabilities of the labels, if anything does.
    """

    images: TrainingImages
    labels: Tensor
    label_smoothing: float = 0.0
    precision: Precision = "fp32"
    seed: int = 0
    track: ConfidenceTracker | None = None

    def loss_sum(self, model: nn.Module, batch: GlobalBatch, part: BatchSlice) -> Tensor:
        """Sum of the losses of the images of `part`, 0-dimensional; `model` is in training mode."""
        ids, epochs = batch.ids[part.rows], batch.epochs[part.rows]
        device = self.labels.device
        set_batch_context(model, group_sizes=part.group_sizes, keys=sample_keys(self.seed, ids, epochs, device))
        with autocast(self.precision, device):
            logits = model(self.images.training_batch(ids, epochs))
        here = torch.from_numpy(ids).to(device)
        targets = self.labels[here]
        # Not in half precision: a sum over a batch would overflow. Doubles stay doubles.
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        if self.track is not None:
            self.track.note(here, targets, logits)
        return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=self.label_smoothing)


@dataclass(frozen=True, kw_only=True)
class TreeSums:
    """What `tree_gradients` found; 0-dimensional, the same bits on all ranks.

    Attributes:
        loss: sum over the images of the global batch.
        leaf_sq_norm: mean over the images of the squared norm of their leaf's mean gradient.
        square: squared norm of the gradient.
    """

    loss: Tensor
    leaf_sq_norm: Tensor
    square: Tensor


def accumulate_gradients(
    model: nn.Module,
    objective: TrainLoss,
    batch: GlobalBatch,
    parts: Sequence[BatchSlice],
    *,
    ranks: int,
    local: bool = False,
    loss_scale: float | Tensor = 1.0,
) -> Tensor:
    """Add the gradient of the mean loss over the global batch to the parameters' `grad`.

    It is the sum of the per-sample losses over the global count, not a mean of means, so parts may
    differ in size. Gradients are exchanged once, with the last part.

    Args:
        model: as returned by `distributed.data_parallel`, in training mode.
        parts: what this rank passes forward, one after another.
        ranks: processes that share the batch; averaging over them is undone here.
        local: leave out the exchange; the gradient is that of the mean over this rank's images.
        loss_scale: multiplies the gradient, against underflow in half precision.

    Returns:
        Sum of the losses of this rank's images, 0-dimensional, float64, on the device.
    """
    total = torch.zeros((), dtype=torch.float64, device=objective.labels.device)
    share = 1 / sum(part.size for part in parts) if local else ranks / batch.size
    for index, part in enumerate(parts):
        with _exchange_off(model, local or index < len(parts) - 1):
            loss = objective.loss_sum(model, batch, part)
            (loss * share * loss_scale).backward()
        total += loss.detach()
    return total


def _exchange_off(model: nn.Module, off: bool) -> AbstractContextManager[None]:
    return distributed.defer_reduction(model, defer=off)


def tree_gradients(
    model: nn.Module,
    objective: TrainLoss,
    batch: GlobalBatch,
    leaves: Sequence[BatchSlice],
    *,
    loss_scale: float | Tensor = 1.0,
) -> TreeSums:
    """Set the parameters' `grad` to the gradient of the mean loss, summed in one fixed order.

    The gradients of the leaves are computed one at a time and added in pairs, first on each rank and
    then over ranks. Where the leaves are the simulated workers, these are the same additions for
    every number of ranks that `valid_world_sizes(..., aligned=True)` names, hence the same bits.

    Args:
        model: not wrapped, in training mode.
        leaves: this rank's parts of the batch.
        loss_scale: multiplies the gradient that is set, and nothing that is returned.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def flat_gradients() -> Iterator[Tensor]:
        for part in leaves:
            loss = objective.loss_sum(model, batch, part)
            # Divided here, as without a tree: a scaled sum over the batch would overflow in half precision.
            gradients = torch.autograd.grad(loss * (loss_scale / batch.size), parameters)
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            mean_of_leaf = flat * (batch.size / (part.size * loss_scale))
            square = mean_of_leaf.square().sum() * (part.size / batch.size)
            yield torch.cat([flat, torch.stack([loss.detach(), square])])

    total = distributed.tree_sum_(distributed.pairwise_sum(flat_gradients()))
    mean, (loss, leaf_sq_norm) = total[:-2], total[-2:]
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, gradient in zip(parameters, mean.split(sizes), strict=True):
        # With the parameter's strides: fused optimizers walk both in memory order.
        parameter.grad = torch.empty_like(parameter).copy_(gradient.view_as(parameter))
    return TreeSums(loss=loss, leaf_sq_norm=leaf_sq_norm, square=(mean / loss_scale).square().sum())


# One optimizer step: the gradient of a global batch, and what acts once per step on it.


class TrainStep:
    """Takes the steps of one run.

    Args:
        batches: how this rank computes a batch of each size.
        pair: any two images that the run trains on.
        track_from_step: the step from which `state.track`, if there is one, notes labels' probabilities.
    """

    def __init__(
        self,
        settings: TrainSettings,
        state: TrainState,
        objective: TrainLoss,
        *,
        batches: Mapping[int, RankBatch],
        pair: GlobalBatch,
        track_from_step: int,
        ranks: World,
        transport: CommConfig,
    ) -> None:
        self._settings, self._state, self._objective = settings, state, objective
        self._tracking, self._track_from = replace(objective, track=state.track), track_from_step
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
            with compile_disabled():
                self._warm_up_buckets(pair)

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
        if local and self.weights_in_sync_after(state.step):
            for parameter in state.model.parameters():
                distributed.all_reduce_sum_(parameter.data).div_(self._ranks.count)

    def weights_in_sync_after(self, step: int) -> bool:
        """Whether all ranks have the same weights after so many steps."""
        first, period = self._settings.local_from_step, self._settings.local_period
        return first is None or step <= first or (step - first) % period == 0 or step == self._settings.steps

    def _tree_step(self, objective: TrainLoss, batch: GlobalBatch, *, metered: bool) -> None:
        leaves = self._batches[batch.size].leaves
        sums = tree_gradients(self._state.model, objective, batch, leaves, loss_scale=self._loss_scale())
        # The sum of all ranks, which records add up over ranks.
        self._state.loss_sum += sums.loss if self._ranks.is_main else torch.zeros_like(sums.loss)
        if metered:
            sample = NoiseSample(
                small_batch=batch.size / (len(leaves) * self._ranks.count),
                big_batch=batch.size,
                mean_small_sq_norm=float(sums.leaf_sq_norm),
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

    def _warm_up_buckets(self, pair: GlobalBatch) -> None:
        """Two backward passes for nothing: DistributedDataParallel orders its buckets anew after the first.

        Without them the first step of a resumed run would add in another order than the same step
        of a run that was never interrupted.
        """
        for _ in range(2):
            self._objective.loss_sum(self._parallel, pair, BatchSlice(rows=slice(0, 2), group_sizes=(2,))).backward()
            self._state.optimizer.zero_grad(set_to_none=True)
