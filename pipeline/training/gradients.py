"""The gradient of a global batch, the same up to rounding for any number of processes, by one of four strategies.

`AveragedGradients` averages over the ranks by DistributedDataParallel, by Horovod, compressed or in two levels.
`LocalGradients` keeps each rank's gradient (post-local SGD). `SliceGradients` computes the gradient of each slice
separately, to measure their noise. `ExactGradients` (`exact_gradients`) sums without rounding.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline import distributed
from pipeline.batching import BatchSlice, GlobalBatch, RankBatch
from pipeline.datasets.sources import TrainingImages, upload
from pipeline.distributed import CommConfig, Compression, World
from pipeline.models.layers import sample_keys, set_batch_context
from pipeline.training.dynamics import ConfidenceTracker, DynamicsTracker
from pipeline.training.noise_scale import NoiseSample
from pipeline.training.numerics import Precision, autocast, compile_disabled


@dataclass(frozen=True, kw_only=True)
class PassInputs:
    """What one forward and backward pass reads, on the device.

    Attributes:
        images: float32 (B, 3, C, C), augmented and normalized.
        sample_ids: (B,) int64, rows of the data set.
        targets: (B,) int64, labels.
        epochs: (B,) int64; None unless the training dynamics are recorded.
        keys: (B,) int64, keys of dropout; None for a network without.
    """

    images: Tensor
    sample_ids: Tensor
    targets: Tensor
    epochs: Tensor | None
    keys: Tensor | None


@dataclass(frozen=True, kw_only=True)
class TrainLoss:
    """The training loss of any part of a global batch.

    Attributes:
        labels: (N,) int64 of all samples of the data set, on the device.
        label_smoothing: 0 to 1.
        seed: of dropout.
        has_dropout: whether the network has dropout, which needs a key of each sample.
        confidence_tracker: records the probabilities of the labels; None records nothing.
        dynamics_tracker: records margins and forgotten labels; None records nothing.
    """

    images: TrainingImages
    labels: Tensor
    label_smoothing: float = 0.0
    precision: Precision = "fp32"
    seed: int = 0
    has_dropout: bool = True
    confidence_tracker: ConfidenceTracker | None = None
    dynamics_tracker: DynamicsTracker | None = None

    def summed_loss(self, model: nn.Module, batch: GlobalBatch, batch_slice: BatchSlice) -> Tensor:
        """Sum the cross-entropy of the samples of a slice, 0-dimensional; `model` is in training mode."""
        return self.loss_from_inputs(model, self.load(batch, batch_slice), batch_slice.group_sizes)

    def load(self, batch: GlobalBatch, batch_slice: BatchSlice) -> PassInputs:
        """Load the samples of a slice to the device."""
        sample_ids, epochs = batch.sample_ids[batch_slice.rows], batch.epochs[batch_slice.rows]
        device = self.labels.device
        keys = upload(sample_keys(self.seed, sample_ids, epochs).numpy(), device) if self.has_dropout else None
        images, device_ids = self.images.training_batch(sample_ids, epochs), upload(sample_ids, device)
        return PassInputs(
            images=images, sample_ids=device_ids, targets=self.labels[device_ids], keys=keys,
            epochs=None if self.dynamics_tracker is None else upload(epochs, device),
        )  # fmt: skip

    def loss_from_inputs(self, model: nn.Module, inputs: PassInputs, group_sizes: Sequence[int]) -> Tensor:
        """Sum the cross-entropy of loaded samples, 0-dimensional; `model` is in training mode."""
        set_batch_context(model, group_sizes=group_sizes, keys=inputs.keys)
        with autocast(self.precision, self.labels.device):
            logits = model(inputs.images)
        # In half precision a sum over a batch would overflow. Float64 stays float64.
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        if self.confidence_tracker is not None:
            self.confidence_tracker.update(inputs.sample_ids, inputs.targets, logits)
        if self.dynamics_tracker is not None:
            assert inputs.epochs is not None, "load() comes first"
            self.dynamics_tracker.update(inputs.sample_ids, inputs.epochs, inputs.targets, logits)
        return F.cross_entropy(logits, inputs.targets, reduction="sum", label_smoothing=self.label_smoothing)


class GradientStrategy(Protocol):
    """Computes the gradient of the mean loss over a global batch."""

    def compute(
        self, train_loss: TrainLoss, batch: GlobalBatch, rank_batch: RankBatch, *, loss_scale: float | Tensor
    ) -> Tensor:
        """Set the parameters' `grad`; all ranks call it.

        Args:
            rank_batch: the part of `batch` that this rank computes.
            loss_scale: multiplies the gradient, against underflow in half precision.

        Returns:
            This rank's part of the summed loss, 0-dimensional, on the device. All ranks' parts add up to the loss sum
            over the global batch.
        """


class AveragedGradients:
    """Averages gradients over the ranks; `comm` and `compression` choose the route."""

    def __init__(self, model: nn.Module, world: World, comm: CommConfig, compression: Compression) -> None:
        self.model = distributed.data_parallel(model, world.device, comm, compression)
        self._world = world
        self._rebuilds_buckets = world.size > 1 and comm.overlap and comm.library == "ddp"

    def compute(
        self, train_loss: TrainLoss, batch: GlobalBatch, rank_batch: RankBatch, *, loss_scale: float | Tensor
    ) -> Tensor:
        """See `GradientStrategy`."""
        return accumulate_gradients(
            self.model, train_loss, batch, rank_batch.micro_batches, world_size=self._world.size, loss_scale=loss_scale
        )

    def warm_up(self, train_loss: TrainLoss, batch: GlobalBatch) -> None:
        """Run two backward passes and discard them: DistributedDataParallel orders its buckets after the first.

        Without them the first step of a resumed run would add in another order than the same step of an uninterrupted
        run.

        Args:
            batch: any two samples that the run trains on.
        """
        if not self._rebuilds_buckets:
            return
        with compile_disabled():
            for _ in range(2):
                warmup_slice = BatchSlice(rows=slice(0, 2), group_sizes=(2,))
                loss = train_loss.summed_loss(self.model, batch, warmup_slice)
                distributed.arrive()
                loss.backward()
                self.model.zero_grad(set_to_none=True)


class LocalGradients:
    """Keeps the gradient of each rank, for post-local SGD.

    Lin, Stich, Patel and Jaggi 2020, Don't Use Large Mini-Batches, Use Local SGD.

    Args:
        model: as `AveragedGradients` wrapped it.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        self._model, self._world = model, world

    def compute(
        self, train_loss: TrainLoss, batch: GlobalBatch, rank_batch: RankBatch, *, loss_scale: float | Tensor
    ) -> Tensor:
        """See `GradientStrategy`; the gradient is of the mean over this rank's samples."""
        return accumulate_gradients(
            self._model, train_loss, batch, rank_batch.micro_batches,
            world_size=self._world.size, local=True, loss_scale=loss_scale,
        )  # fmt: skip


class SliceGradients:
    """Sums the gradients of the slices one by one, which measures their noise; `model` is not wrapped."""

    def __init__(self, model: nn.Module, world: World) -> None:
        self._model, self._world = model, world
        self._sums: tuple[SliceGradientSums, float, int] | None = None

    def compute(
        self, train_loss: TrainLoss, batch: GlobalBatch, rank_batch: RankBatch, *, loss_scale: float | Tensor
    ) -> Tensor:
        """See `GradientStrategy`."""
        slices = rank_batch.slices
        sums = slice_gradients(self._model, train_loss, batch, slices, loss_scale=loss_scale)
        self._sums = sums, batch.size / (len(slices) * self._world.size), batch.size
        # The sum is over all ranks already, and history records add up over ranks.
        return rank_share(sums.loss, sums.own_loss, self._world)

    def noise_sample(self) -> NoiseSample:
        """Return the noise of the last batch's gradient; it waits for the device."""
        assert self._sums is not None, "compute() comes first"
        sums, small_batch, big_batch = self._sums
        return NoiseSample(
            small_batch=small_batch,
            big_batch=big_batch,
            mean_small_sq_norm=float(sums.slice_sq_norm),
            big_sq_norm=float(sums.sq_norm),
        )


def rank_share(total: Tensor, own: Tensor, world: World) -> Tensor:
    """Return this rank's part of a loss that is summed over all ranks: all of it on rank 0.

    If the sum is not finite, the part is `own`, that of this rank's samples, which shows on which rank it arose.
    """
    part = total if world.is_main else torch.zeros_like(total)
    return torch.where(total.isfinite(), part, own.to(total.dtype))


def average_weights(model: nn.Module, world: World) -> None:
    """Replace the weights by their mean over the ranks; all ranks call it."""
    for parameter in model.parameters():
        distributed.all_reduce_sum_(parameter.data).div_(world.size)


def accumulate_gradients(
    model: nn.Module,
    train_loss: TrainLoss,
    batch: GlobalBatch,
    micro_batches: Sequence[BatchSlice],
    *,
    world_size: int,
    local: bool = False,
    loss_scale: float | Tensor = 1.0,
) -> Tensor:
    """Add the gradient of the mean loss over the global batch to the parameters' `grad`.

    It is the sum of the per-sample losses divided by the global count, not a mean of means, so micro-batches may
    differ in size. Ranks exchange gradients once, with the last micro-batch.

    Args:
        model: as returned by `distributed.data_parallel`, in training mode.
        micro_batches: this rank's slices of the batch, which pass forward one after another.
        world_size: processes that share the batch; averaging over them is undone here.
        local: leave out the exchange; the gradient is that of the mean over this rank's samples.
        loss_scale: multiplies the gradient, against underflow in half precision.

    Returns:
        Sum of the losses of this rank's samples, 0-dimensional, float64, on the device.
    """
    total = torch.zeros((), dtype=torch.float64, device=train_loss.labels.device)
    weight = 1 / sum(micro_batch.size for micro_batch in micro_batches) if local else world_size / batch.size
    for index, micro_batch in enumerate(micro_batches):
        exchanges = not local and index == len(micro_batches) - 1
        with distributed.gradient_sync(model, enabled=exchanges):
            loss = train_loss.summed_loss(model, batch, micro_batch)
            if exchanges:
                # The backward pass waits for ranks that have not reached it.
                distributed.arrive()
            (loss * weight * loss_scale).backward()
        total += loss.detach()
    return total


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that training updates."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def set_gradients(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> None:
    """Set each parameter's `grad` to a copy of a flat gradient, in the parameter's type."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        # With the parameter's strides: fused optimizers walk both in memory order.
        parameter.grad = torch.empty_like(parameter).copy_(gradient.view_as(parameter))


@dataclass(frozen=True, kw_only=True)
class SliceGradientSums:
    """Results of `slice_gradients`; 0-dimensional, the same bits on all ranks.

    Attributes:
        loss: sum over the samples of the global batch.
        own_loss: sum over the samples of this rank; differs between ranks.
        slice_sq_norm: mean over the samples of the squared norm of their slice's mean gradient.
        sq_norm: squared norm of the gradient.
    """

    loss: Tensor
    own_loss: Tensor
    slice_sq_norm: Tensor
    sq_norm: Tensor


def slice_gradients(
    model: nn.Module,
    train_loss: TrainLoss,
    batch: GlobalBatch,
    slices: Sequence[BatchSlice],
    *,
    loss_scale: float | Tensor = 1.0,
) -> SliceGradientSums:
    """Set the parameters' `grad` to the gradient of the mean loss, and measure that of each slice.

    The gradients of the slices are computed one at a time and added in pairs, first on each rank and then over ranks.

    Args:
        model: not wrapped, in training mode.
        slices: this rank's slices of the batch.
        loss_scale: multiplies the gradient that is set, and nothing that is returned.
    """
    parameters = trained_parameters(model)
    own_losses: list[Tensor] = []

    def flat_gradients() -> Iterator[Tensor]:
        for batch_slice in slices:
            loss = train_loss.summed_loss(model, batch, batch_slice)
            # Divided before the backward pass: a scaled sum over the batch would overflow in half precision.
            gradients = torch.autograd.grad(loss * (loss_scale / batch.size), parameters)
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            slice_mean = flat * (batch.size / (batch_slice.size * loss_scale))
            sq_norm = slice_mean.square().sum() * (batch_slice.size / batch.size)
            own_losses.append(loss.detach())
            yield torch.cat([flat, torch.stack([own_losses[-1], sq_norm])])

    total = distributed.all_reduce_pairwise_(distributed.pairwise_sum(flat_gradients()))
    mean, (loss, slice_sq_norm) = total[:-2], total[-2:]
    set_gradients(parameters, mean.split([parameter.numel() for parameter in parameters]))
    return SliceGradientSums(
        loss=loss, own_loss=torch.stack(own_losses).sum(), slice_sq_norm=slice_sq_norm,
        sq_norm=(mean / loss_scale).square().sum(),
    )  # fmt: skip
