"""The gradient of one global batch, exact for any number of processes."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline import distributed
from pipeline.batching import Part, SampleStream
from pipeline.datasets.training_images import TrainingImages
from pipeline.models.batch_context import describe_batch
from pipeline.models.keyed_dropout import sample_keys
from pipeline.training.confidence_track import ConfidenceTrack
from pipeline.training.precision import Precision, autocast


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
class Objective:
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
    track: ConfidenceTrack | None = None

    def loss_sum(self, model: nn.Module, batch: GlobalBatch, part: Part) -> Tensor:
        """Sum of the losses of the images of `part`, 0-dimensional; `model` is in training mode."""
        ids, epochs = batch.ids[part.rows], batch.epochs[part.rows]
        device = self.labels.device
        describe_batch(model, group_sizes=part.group_sizes, keys=sample_keys(self.seed, ids, epochs, device))
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
        leaf_square: mean over the images of the squared norm of their leaf's mean gradient.
        square: squared norm of the gradient.
    """

    loss: Tensor
    leaf_square: Tensor
    square: Tensor


def accumulate_gradients(
    model: nn.Module,
    objective: Objective,
    batch: GlobalBatch,
    parts: Sequence[Part],
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
    objective: Objective,
    batch: GlobalBatch,
    leaves: Sequence[Part],
    *,
    loss_scale: float | Tensor = 1.0,
) -> TreeSums:
    """Set the parameters' `grad` to the gradient of the mean loss, summed in one fixed order.

    The gradients of the leaves are computed one at a time and added in pairs, first on each rank and
    then over ranks. Where the leaves are the simulated workers, these are the same additions for
    every number of ranks that `fitting_ranks(..., aligned=True)` names, hence the same bits.

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
    mean, (loss, leaf_square) = total[:-2], total[-2:]
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, gradient in zip(parameters, mean.split(sizes), strict=True):
        # With the parameter's strides: fused optimizers walk both in memory order.
        parameter.grad = torch.empty_like(parameter).copy_(gradient.view_as(parameter))
    return TreeSums(loss=loss, leaf_square=leaf_square, square=(mean / loss_scale).square().sum())
