"""Turn training weights into evaluation weights: the weight average, and BatchNorm statistics recomputed for it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pipeline import distributed
from pipeline.batching import BatchSlice, GlobalBatch, RankBatch, SampleStream
from pipeline.models.layers import GroupedBatchNorm2d
from pipeline.training.gradients import TrainLoss
from pipeline.training.numerics import compile_disabled
from pipeline.training.settings import TrainSettings
from pipeline.training.state import TrainState

STATISTICS_IMAGES = 2048
"""Most images of the recomputed BatchNorm statistics: enough for those of the last layers, which have few pixels."""
# In a shorter run this fraction of its images keeps the passes to 2 % of its time: a forward pass is a third of a step.
_SHARE = 1 / 16
# With fewer images the accuracy of equal weights varies, see docs/decisions/batch-norm.md.
_FEWEST_IMAGES = 512


@torch.no_grad()
def recompute_batch_norm_statistics(
    model: nn.Module,
    train_loss: TrainLoss,
    batches: Sequence[GlobalBatch],
    micro_batches: Sequence[BatchSlice],
    *,
    sum_parts: Callable[[Iterator[Tensor]], Tensor] | None = None,
) -> None:
    """Set the running statistics to the mean over groups of the statistics under the final weights.

    A moving average kept while training would be of past weights, and of few of them in a short run of large batches
    (Wu & Johnson 2021, Rethinking "Batch" in BatchNorm, section 3). The groups are those of training. The result is
    the same for every number of processes: up to rounding, or in every bit where each micro-batch is a simulated worker
    and `sum_parts` is `distributed.pairwise_sum_over_ranks`.

    Args:
        batches: global batches, with the augmentation of training.
        micro_batches: this rank's slices of each global batch.
        sum_parts: sums this rank's 1-dimensional tensors and those of the other ranks; None: in no fixed order.
    """
    sum_parts = sum_parts or _sum_in_any_order
    layers = [module for module in model.modules() if isinstance(module, GroupedBatchNorm2d)]
    if not layers:
        return
    model.train()
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        total = total + sum_parts(_sums_over_groups(model, train_loss, batch, micro_batches, layers)).cpu()
    n_groups, means = int(total[0]), total[1:] / total[0]
    for layer, values in zip(layers, means.split([2 * layer.num_features for layer in layers]), strict=True):
        mean, variance = values.view(2, layer.num_features)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        assert layer.num_batches_tracked is not None
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(variance)
        layer.num_batches_tracked.fill_(n_groups)


def _sum_in_any_order(parts: Iterator[Tensor]) -> Tensor:
    return distributed.all_reduce_sum_(distributed.pairwise_sum(parts))


def _sums_over_groups(
    model: nn.Module,
    train_loss: TrainLoss,
    batch: GlobalBatch,
    micro_batches: Sequence[BatchSlice],
    layers: Sequence[GroupedBatchNorm2d],
) -> Iterator[Tensor]:
    """Yield for each micro-batch, float64: its number of groups, then each layer's sums of means and of variances."""
    for micro_batch in micro_batches:
        for layer in layers:
            layer.collected = []
        train_loss.summed_loss(model, batch, micro_batch)
        statistics = [torch.stack(layer.collected or []).double().sum(0).flatten() for layer in layers]
        for layer in layers:
            layer.collected = None
        n_groups = torch.full((1,), len(micro_batch.group_sizes), dtype=torch.float64, device=statistics[0].device)
        yield torch.cat([n_groups, *statistics])


def statistics_batches(trained_on: int, batch_size: int) -> int:
    """Return the number of global batches for the recomputed BatchNorm statistics, at least 1.

    It depends only on the settings. The batches contain a sixteenth of the images that the run has trained on,
    including repeats, but 512 to 2,048, and no more than the run has trained on. The last batch is complete.

    Args:
        trained_on: images of all steps so far, including repeats; at least one batch.
        batch_size: images of a global batch, at least 1.
    """
    n_images = min(STATISTICS_IMAGES, trained_on, max(_FEWEST_IMAGES, math.ceil(_SHARE * trained_on)))
    return math.ceil(n_images / batch_size)


class EvalWeights:
    """Swaps in the evaluation weights of a run, at its end or temporarily.

    All ranks call its methods after the same step, not before the first.

    Args:
        batches: by batch size, what this rank computes of a global batch.
    """

    def __init__(
        self,
        settings: TrainSettings,
        state: TrainState,
        train_loss: TrainLoss,
        stream: SampleStream,
        batches: Mapping[int, RankBatch],
    ) -> None:
        self._settings, self._state, self._train_loss = settings, state, train_loss
        self._stream, self._batches = stream, batches

    def swap_in(self) -> None:
        """Replace the run's weights permanently."""
        state, settings = self._state, self._settings
        if state.average is not None:
            averaged = dict(state.average.module.named_parameters())
            with torch.no_grad():
                for name, parameter in state.model.named_parameters():
                    parameter.copy_(averaged[name])
        # With the BatchNorm groups of the last step.
        size, done = settings.batch_sizes.size_at(state.step - 1), settings.batch_sizes.examples(state.step)
        batches = [
            GlobalBatch.from_stream(self._stream, start=done + index * size, size=size)
            for index in range(statistics_batches(done, size))
        ]
        with compile_disabled():
            recompute_batch_norm_statistics(
                state.model,
                self._train_loss,
                batches,
                self._batches[size].micro_batches,
                sum_parts=distributed.pairwise_sum_over_ranks if settings.reduction == "exact" else None,
            )

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Temporarily load the evaluation weights; training continues with the same bits afterwards."""
        before = {name: tensor.clone() for name, tensor in self._state.model.state_dict().items()}
        self.swap_in()
        try:
            yield
        finally:
            self._state.model.load_state_dict(before)
            self._state.model.train()
