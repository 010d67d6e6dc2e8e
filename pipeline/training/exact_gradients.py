"""The gradient of a global batch in the same bits for every number of processes and every collective.

The gradient of each simulated worker's slice is rounded to a grid and added in float64, which is exact
(`distributed.exact_sum`). The loss, the squared norms of these gradients and the number of slices are added in the same
way. Ranks exchange sums during the backward pass of their last slice.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pipeline import distributed
from pipeline.batching import BatchSlice, GlobalBatch, RankBatch
from pipeline.distributed import CommConfig, Grids, OverlappedSum, World
from pipeline.training.gradients import TrainLoss, rank_share, set_gradients, trained_parameters
from pipeline.training.noise_scale import NoiseSample

_BUCKET_ELEMENTS_PER_MIB = (1 << 20) // 8
# Loss, squared norm and number of the slices.
_N_SCALARS = 3


class ExactGradients:
    """Adds the gradients of the simulated workers exactly; `model` is not wrapped.

    A step uses the grids that the previous step found. If a gradient exceeds their range, the step is computed again
    with grids that fit. The first step is always computed twice. A repeated pass has equal gradients: forward passes in
    training change no buffer, and the labels' probabilities are tracked once.

    Args:
        simulated_workers: the most slices of a global batch.
        grids: those of the previous step; None before the first.

    Attributes:
        grids: for the next step; a checkpoint has to keep them.
    """

    def __init__(
        self, model: nn.Module, world: World, comm: CommConfig, *, simulated_workers: int, grids: Grids | None
    ) -> None:
        self._model, self._world, self.grids = model, world, grids
        self._max_slices = simulated_workers
        self._bucket_elements = max(1, int(comm.bucket_mib * _BUCKET_ELEMENTS_PER_MIB)) if comm.overlap else None
        self._nodes = distributed.node_groups(comm.timeout_seconds) if comm.hierarchical and world.size > 1 else None
        self._overlaps = comm.overlap and self._nodes is None and world.size > 1
        self._noise: _Noise | None = None
        # Kept from step to step: new pages of memory would take as long as the sum.
        self._total: Tensor | None = None

    def compute(
        self, train_loss: TrainLoss, batch: GlobalBatch, rank_batch: RankBatch, *, loss_scale: float | Tensor
    ) -> Tensor:
        """See `GradientStrategy`."""
        parameters = trained_parameters(self._model)
        sizes = [*[1] * _N_SCALARS, *(parameter.numel() for parameter in parameters)]
        self._noise = None  # it reads the last total
        if self._total is None:
            self._total = torch.empty(sum(sizes), dtype=torch.float64, device=self._world.device)
        total = self._total.zero_()
        views = total.split(sizes)
        # `grids` rounds this pass; `found` fits this pass's gradients. If `grids` covers them, the sum stands and
        # `found` serves the next step. If not, the pass is repeated with `found`, which covers them by construction.
        grids = self.grids
        while True:
            largest = torch.zeros(len(sizes), dtype=torch.float64, device=self._world.device)
            slice_sum, own_losses = _SliceSum(views, grids), list[Tensor]()
            last = rank_batch.slices[-1]
            for batch_slice in rank_batch.slices:
                if batch_slice is last and self._overlaps and grids is not None:
                    assert self._bucket_elements is not None
                    slice_sum.exchange = OverlappedSum(total, sizes, bucket_elements=self._bucket_elements)
                summands = _summands(self._model, train_loss, batch, batch_slice, loss_scale, parameters, slice_sum.add)
                own_losses.append(summands[0])
                largest = torch.maximum(largest, distributed.largest_finite(summands))
            if slice_sum.exchange is not None:
                slice_sum.exchange.wait()
            distributed.all_reduce_max_(largest)
            values = largest.tolist()  # waits for the device, once a pass
            found = Grids.for_largest(values, self._max_slices, previous=grids)
            # The same decision on all ranks, since `largest` is equal there.
            if grids is not None and grids.cover(values):
                break
            grids, train_loss = found, replace(train_loss, confidence_tracker=None, dynamics_tracker=None)
            total.zero_()
        self.grids = found
        if slice_sum.exchange is None:
            distributed.all_reduce_buckets_(total, bucket_elements=self._bucket_elements, nodes=self._nodes)

        set_gradients(parameters, views[_N_SCALARS:])
        self._noise = _Noise(total, batch.size, loss_scale)
        # The sum is over all ranks already, and history records add up over ranks.
        return rank_share(views[0][0], torch.cat(own_losses).sum(), self._world)

    def noise_sample(self) -> NoiseSample:
        """Return the noise of the last batch's gradient; it waits for the device."""
        assert self._noise is not None, "compute() comes first"
        total, size, loss_scale = self._noise
        _, slice_sq_norm, n_slices = total[:_N_SCALARS].tolist()
        mean = total[_N_SCALARS:] / loss_scale
        return NoiseSample(
            small_batch=size / int(n_slices),
            big_batch=size,
            mean_small_sq_norm=slice_sq_norm,
            big_sq_norm=float(mean.square().sum()),
        )


class _Noise(NamedTuple):
    """The inputs of the noise of a batch's gradient. They are read only by steps that sample it: reading waits for the
    device.

    Attributes:
        total: the summed summands, (n,) float64.
        size: samples of the batch.
    """

    total: Tensor
    size: int
    loss_scale: float | Tensor


class _SliceSum:
    """Adds the summands of this rank's slices to their totals, and starts the exchange of those that are complete.

    Args:
        totals: of each summand, (n,) float64.
        grids: None adds nothing: the pass only finds the largest elements.

    Attributes:
        exchange: set while the last slice is added, if sums are exchanged during its backward pass.
    """

    def __init__(self, totals: Sequence[Tensor], grids: Grids | None) -> None:
        self._totals, self._grids = totals, grids
        self.exchange: OverlappedSum | None = None

    def add(self, index: int, summand: Tensor) -> None:
        """Add one summand of a slice, (n,)."""
        if self._grids is not None:
            self._grids.add_rounded_(index, self._totals[index], summand)
        if self.exchange is not None:
            self.exchange.complete(index)


def _summands(
    model: nn.Module,
    train_loss: TrainLoss,
    batch: GlobalBatch,
    batch_slice: BatchSlice,
    loss_scale: float | Tensor,
    parameters: Sequence[nn.Parameter],
    add: Callable[[int, Tensor], None],
) -> list[Tensor]:
    """Return a slice's summands: loss, squared norm and a one, each (1,), and the gradient of each parameter.

    Args:
        add: called with the index of each summand and the flat summand, as soon as it is known.
    """

    def take(index: int, gradient: Tensor) -> None:
        add(_N_SCALARS + index, gradient.reshape(-1))

    hooks = [parameter.register_hook(partial(take, index)) for index, parameter in enumerate(parameters)]
    try:
        loss = train_loss.summed_loss(model, batch, batch_slice)
        # Divided before the backward pass: a scaled sum over the batch would overflow in half precision.
        gradients = torch.autograd.grad(loss * (loss_scale / batch.size), parameters)
    finally:
        for hook in hooks:
            hook.remove()
    norms = torch.stack(torch._foreach_norm(list(gradients))).double()
    # Of the mean gradient of the slice's samples, weighted by their share of the batch.
    sq_norm = norms.square().sum() * (batch.size / (batch_slice.size * loss_scale**2))
    scalars = [scalar.view(1) for scalar in (loss.detach().double(), sq_norm, torch.ones_like(sq_norm))]
    for index, scalar in enumerate(scalars):
        add(index, scalar)
    return [*scalars, *gradients]
