"""The context of the batch in a forward pass of training."""

import pytest
import torch
from torch import nn

from pipeline.models import set_batch_context
from pipeline.models.layers import GroupedBatchNorm2d, KeyedDropout, has_dropout


def test_every_layer_that_needs_it_gets_the_batch_context() -> None:
    norm, dropout = GroupedBatchNorm2d(3), KeyedDropout(0.5, layer=1)
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(norm, dropout))
    keys = torch.arange(5)
    set_batch_context(model, group_sizes=(2, 3), keys=keys)
    assert list(norm.group_sizes) == [2, 3]
    assert dropout.keys is keys


@pytest.mark.parametrize("sizes", [(), (2, 2), (6,)])
def test_groups_that_are_not_the_batch_are_a_bug(sizes: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        set_batch_context(nn.Sequential(), group_sizes=sizes, keys=torch.arange(5))


def test_a_network_needs_keys_only_if_a_layer_drops() -> None:
    assert has_dropout(nn.Sequential(nn.Sequential(KeyedDropout(0.1, layer=0))))
    assert not has_dropout(nn.Sequential(KeyedDropout(0.0, layer=0), GroupedBatchNorm2d(3)))
    set_batch_context(norm := GroupedBatchNorm2d(3), group_sizes=(2, 3), keys=None)
    assert list(norm.group_sizes) == [2, 3]
