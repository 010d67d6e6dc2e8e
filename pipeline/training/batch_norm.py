"""Population statistics for evaluation."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from pipeline import distributed
from pipeline.batching import Part
from pipeline.models.grouped_batch_norm import GroupedBatchNorm2d
from pipeline.training.gradient import GlobalBatch, Objective


@torch.no_grad()
def recompute_statistics(
    model: nn.Module,
    objective: Objective,
    batches: Sequence[GlobalBatch],
    parts: Sequence[Part],
    *,
    sum_over_ranks_: Callable[[Tensor], Tensor] = distributed.all_reduce_sum_,
) -> None:
    """Set the running statistics to the mean, over groups, of the final weights' own.

    A moving average kept while training would be of past weights, and of few of them in a short run
    of large batches (Wu & Johnson 2021, Rethinking "Batch" in BatchNorm, section 3). Groups are
    those of training. The result does not depend on the number of processes: up to rounding, or in
    every bit where `parts` are single simulated workers and the sum over ranks is
    `distributed.tree_sum_`.

    Args:
        batches: global batches, with the augmentation of training.
        parts: what this rank passes forward of each.
        sum_over_ranks_: in place, of a 1-dimensional tensor.
    """
    layers = [module for module in model.modules() if isinstance(module, GroupedBatchNorm2d)]
    if not layers:
        return
    model.train()
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        sums = distributed.pairwise_sum(_sums_over_groups(model, objective, batch, parts, layers))
        total = total + sum_over_ranks_(sums).cpu()
    n_groups, means = int(total[0]), total[1:] / total[0]
    for layer, values in zip(layers, means.split([2 * layer.num_features for layer in layers]), strict=True):
        mean, variance = values.view(2, layer.num_features)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        assert layer.num_batches_tracked is not None
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(variance)
        layer.num_batches_tracked.fill_(n_groups)


def _sums_over_groups(
    model: nn.Module,
    objective: Objective,
    batch: GlobalBatch,
    parts: Sequence[Part],
    layers: Sequence[GroupedBatchNorm2d],
) -> Iterator[Tensor]:
    """For each part, float64: its number of groups, then each layer's sums of means and of variances."""
    for part in parts:
        for layer in layers:
            layer.collected = []
        objective.loss_sum(model, batch, part)
        found = [torch.stack(layer.collected or []).double().sum(0).flatten() for layer in layers]
        for layer in layers:
            layer.collected = None
        n_groups = torch.full((1,), len(part.group_sizes), dtype=torch.float64, device=found[0].device)
        yield torch.cat([n_groups, *found])
