"""Recomputed statistics against means and variances by hand."""

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipeline import distributed
from pipeline.batching import BatchSlice, GlobalBatch, merge_micro_batches, rank_slices, worker_slices
from pipeline.models.layers import GroupedBatchNorm2d
from pipeline.training.eval_weights import recompute_batch_norm_statistics
from pipeline.training.evaluation import load_images
from pipeline.training.gradients import TrainLoss
from tests.fixtures.training import TINY, bright_images, build_float64, build_resnet

_PARTS = worker_slices(10, 3)
_BATCHES = [
    GlobalBatch(sample_ids=np.arange(start, start + 10), epochs=np.full(10, epoch))
    for start, epoch in ((0, 0), (10, 0), (5, 1))
]


def _train_loss() -> TrainLoss:
    pixels, labels = bright_images(20)
    images = load_images(pixels, TINY, training=True, device=torch.device("cpu"))
    return TrainLoss(images=images, labels=torch.from_numpy(labels))


def _groups() -> list[Tensor]:
    """All groups of all batches, (n, 3, side, side) float64 each."""
    images = _train_loss().images
    return [
        images.training_batch(batch.sample_ids[part.rows], batch.epochs[part.rows]).double()
        for batch in _BATCHES
        for part in _PARTS
    ]


class _Headed(nn.Sequential):
    """Its layers, in the type of their weights, and four numbers of each image for the loss."""

    def forward(self, images: Tensor) -> Tensor:
        return cast("Tensor", super().forward(images.to(next(self.parameters()).dtype))).flatten(1)[:, :4]


def _recompute(model: nn.Module, parts: Sequence[BatchSlice] = _PARTS) -> None:
    recompute_batch_norm_statistics(model, _train_loss(), _BATCHES, parts)


def _norms(model: nn.Module) -> list[GroupedBatchNorm2d]:
    return [module for module in model.modules() if isinstance(module, GroupedBatchNorm2d)]


def test_statistics_are_means_over_groups() -> None:
    layer = GroupedBatchNorm2d(3)
    _recompute(_Headed(layer))
    means = torch.stack([group.mean((0, 2, 3)) for group in _groups()])
    # Like torch's own running variance, with the unbiased one of each group.
    variances = torch.stack([group.transpose(0, 1).flatten(1).var(1) for group in _groups()])
    torch.testing.assert_close(layer.running_mean, means.mean(0).float())
    torch.testing.assert_close(layer.running_var, variances.mean(0).float())
    assert int(cast("Tensor", layer.num_batches_tracked)) == len(_BATCHES) * len(_PARTS)


def test_statistics_of_before_are_forgotten() -> None:
    fresh, used = GroupedBatchNorm2d(3), GroupedBatchNorm2d(3)
    for buffer in used.buffers():
        buffer.fill_(100)
    for layer in (fresh, used):
        _recompute(_Headed(layer))
    assert fresh.state_dict().keys() == used.state_dict().keys()
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, used.state_dict()[name]), name


def test_deeper_layers_see_what_training_showed_them() -> None:
    """The first layer normalizes by the group's own statistics: the second sees mean 0 and variance v / (v + eps).

    In float64: a sum of 1,024 numbers is off by at most 1,024 * 2^-53 of their magnitudes, 1.1e-13.
    """
    layers = GroupedBatchNorm2d(3).double(), GroupedBatchNorm2d(3).double()
    _recompute(_Headed(*layers))
    groups = [group.transpose(0, 1).flatten(1) for group in _groups()]
    variances = torch.stack([group.var(1) / (group.var(1, correction=0) + layers[0].eps) for group in groups])
    torch.testing.assert_close(layers[1].running_mean, torch.zeros(3).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(layers[1].running_var, variances.mean(0), atol=1e-12, rtol=0)


def test_weights_stay_and_nothing_is_collected_afterwards() -> None:
    model = build_resnet()
    before = [parameter.clone() for parameter in model.parameters()]
    _recompute(model)
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(layer.collected is None for layer in _norms(model))


def _statistics(model: nn.Module) -> Tensor:
    return torch.cat([buffer.double().flatten() for buffer in model.buffers()])


def test_groups_may_pass_together() -> None:
    """Merged groups are another thing: they are counted, and seen, as one."""
    apart, together, merged = (build_float64("resnet18", 4, stem="imagenet", seed=0) for _ in range(3))
    _recompute(apart)
    _recompute(together, merge_micro_batches(_PARTS, 10))
    torch.testing.assert_close(_statistics(together), _statistics(apart), rtol=1e-12, atol=1e-12)
    _recompute(merged, [BatchSlice(rows=slice(0, 10), group_sizes=(10,))])
    assert float((_statistics(merged) - _statistics(apart)).abs().max()) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_together_have_the_bits_of_one(ranks: int) -> None:
    """With the sum over ranks of tree mode, over single simulated workers."""
    parts, partial = worker_slices(10, 4), list[list[Tensor]]()

    def run(mine: Sequence[BatchSlice], over_ranks: list[list[Tensor]] | None) -> Tensor:
        """One rank's part in the sums; with those of all ranks given, what each of them then holds."""
        model, own = build_resnet(), list[Tensor]()

        def sum_over_ranks_(tensor: Tensor) -> Tensor:
            own.append(tensor.clone())
            everyones = [rank[len(own) - 1].clone() for rank in over_ranks] if over_ranks else [tensor]
            return distributed.pairwise_sum(everyones)

        recompute_batch_norm_statistics(
            model, _train_loss(), _BATCHES, mine,
            sum_parts=lambda parts: sum_over_ranks_(distributed.pairwise_sum(parts)),
        )  # fmt: skip
        partial.append(own)
        return _statistics(model)

    alone = run(parts, None)
    partial.clear()
    shares = [rank_slices(parts, rank=rank, world_size=ranks) for rank in range(ranks)]
    for mine in shares:
        run(mine, None)
    together = list(partial)
    assert all(torch.equal(run(mine, together), alone) for mine in shares)


def test_a_network_without_batch_norm_has_nothing_to_recompute() -> None:
    passes = []

    class Counted(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            passes.append(len(images))
            return images

    _recompute(Counted())
    assert passes == []
