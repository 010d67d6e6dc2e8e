"""Telling a network's layers whose images are in the batch that comes next."""

from collections.abc import Sequence

from torch import Tensor, nn

from pipeline.models.grouped_batch_norm import GroupedBatchNorm2d
from pipeline.models.keyed_dropout import KeyedDropout


def describe_batch(model: nn.Module, *, group_sizes: Sequence[int], keys: Tensor) -> None:
    """Set what the layers of `model` need for one forward pass in training.

    Args:
        group_sizes: images of each BatchNorm group, in the order of the batch.
        keys: (B,) int64, see `sample_keys`.
    """
    assert sum(group_sizes) == len(keys), (group_sizes, len(keys))
    for module in model.modules():
        if isinstance(module, GroupedBatchNorm2d):
            module.group_sizes = group_sizes
        elif isinstance(module, KeyedDropout):
            module.keys = keys
