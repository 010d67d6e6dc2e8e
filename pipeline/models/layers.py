"""Layers that depend on the batch's composition: ghost BatchNorm and keyed dropout."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

_GOLDEN = -7046029254386353131  # 2**64 / the golden ratio, odd, as a signed number
_MIX1, _MIX2 = -4658895280553007687, -7723592293110705685
_APPLICATION = 1 << 32  # above the numbers of layers


class GroupedBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm that, in training, normalizes every group of the batch by the group's mean and variance.

    This is ghost batch normalization (Hoffer, Hubara & Soudry 2017, algorithm 1). A job of many workers has one
    BatchNorm group per worker. A process that simulates several workers passes their images forward together, which is
    faster, and this layer keeps the groups apart. Except on a CPU, groups of equal size are one operation on images of
    groups * C channels.

    The running statistics take no part in training: they are set once, from the final weights. Parameters and buffers
    have the names of `nn.BatchNorm2d`.

    Attributes:
        group_sizes: images of each group, in order; together the batch. Empty: one group.
        collected: while a list, each group's mean and unbiased variance are appended, (2, C) float32.
    """

    def __init__(self, num_features: int) -> None:
        super().__init__(num_features)
        self.group_sizes: Sequence[int] = ()
        self.collected: list[Tensor] | None = None

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in torch's base class
        """(N, C, H, W) -> the same shape.

        Raises:
            ValueError: a group of a single value per channel.
        """
        if not self.training:
            return super().forward(input)
        n_groups = len(self.group_sizes)
        if n_groups < 2:
            return self._normalize(input)
        if self._is_one_operation(input):
            return _unfolded(self._normalize(_folded(input, n_groups), n_groups), n_groups)
        return torch.cat([self._normalize(group) for group in input.split(list(self.group_sizes))])

    def _is_one_operation(self, input: Tensor) -> bool:  # noqa: A002 - as above
        """Return whether all groups are normalized together, which adds in another order than one by one.

        A GPU takes as long to start an operation on a small group as to run it. A CPU keeps the bits of earlier runs.
        """
        return input.device.type != "cpu" and len(set(self.group_sizes)) == 1

    def _normalize(self, images: Tensor, n_groups: int = 1) -> Tensor:
        """Normalize one group (N, C, H, W), or several of equal size (N, groups * C, H, W)."""
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if n_groups > 1:
            weight, bias = weight.repeat(n_groups), bias.repeat(n_groups)
        mean = variance = None
        if self.collected is not None:
            # With a momentum of 1 the "running" values are those of this group.
            mean, variance = statistics = torch.zeros_like(torch.stack([weight, bias]))
            self.collected += statistics.view(2, n_groups, self.num_features).unbind(1)
        return F.batch_norm(images, mean, variance, weight, bias, training=True, momentum=1.0, eps=self.eps)


def _folded(images: Tensor, n_groups: int) -> Tensor:
    """Make the groups channels: (groups * n, C, H, W) -> (n, groups * C, H, W), channels_last."""
    by_group: Tensor = images.permute(0, 2, 3, 1).unflatten(0, (n_groups, -1))
    return by_group.permute(1, 2, 3, 0, 4).flatten(3).permute(0, 3, 1, 2)


def _unfolded(images: Tensor, n_groups: int) -> Tensor:
    """Invert `_folded`."""
    by_group: Tensor = images.permute(0, 2, 3, 1).unflatten(3, (n_groups, -1))
    return by_group.permute(3, 0, 1, 2, 4).flatten(0, 1).permute(0, 3, 1, 2)


def convert_batch_norm(grouped: GroupedBatchNorm2d, norm: nn.BatchNorm2d) -> GroupedBatchNorm2d:
    """Return `grouped` with the settings, parameters and buffers of `norm`; the tensors stay the same."""
    grouped.eps, grouped.momentum = norm.eps, norm.momentum
    grouped.weight, grouped.bias = norm.weight, norm.bias
    for buffer in ("running_mean", "running_var", "num_batches_tracked"):
        setattr(grouped, buffer, getattr(norm, buffer))
    return grouped


def sample_keys(seed: int, sample_ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
    """Return one dropout key per sample, (B,) int64 on the CPU, distinct with overwhelming probability.

    Args:
        sample_ids, epochs: (B,) int64.
    """
    key = _mixed(torch.tensor(seed, dtype=torch.int64) * _GOLDEN)
    for part in (epochs, sample_ids):
        key = _mixed(key + torch.from_numpy(part) * _GOLDEN)
    return key


class KeyedDropout(nn.Module):
    """Dropout whose masks depend on the samples, not on the batch or the process.

    In training it zeroes elements with probability `p` and scales the others by 1 / (1 - p).

    A mask is a function of (seed, epoch, sample id, layer) by a counter-based generator: the finalizer of SplitMix64
    (Steele, Lea & Flood 2014, Fast Splittable Pseudorandom Number Generators), applied to the sample's key plus the
    element's index. So splitting a batch changes nothing, resuming needs no saved generator, and CPU and GPU give equal
    masks.

    A network may apply one layer several times in a pass. Each application has its own masks.

    Args:
        layer: number of the dropout layer, so that the layers of a network have different masks.
    """

    def __init__(self, p: float, *, layer: int) -> None:
        super().__init__()
        assert 0 <= p < 1, p
        self.p, self.layer = p, layer
        self.keys = None

    @property
    def keys(self) -> Tensor | None:
        """Keys (B,) int64 of the samples, from `sample_keys`; setting them begins a forward pass."""
        return self._keys

    @keys.setter
    def keys(self, keys: Tensor | None) -> None:
        self._keys, self._n_applied = keys, 0

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) -> the same shape."""
        if not self.training or self.p == 0:
            return x
        return x * self._kept(x, x[0].numel()).view(x.shape) / (1 - self.p)

    def _kept(self, x: Tensor, n: int) -> Tensor:
        """Return `n` decisions for each sample of `x`, (B, n) bool, others at each application in a pass."""
        assert self.keys is not None, "set_batch_context() comes before a forward pass in training"
        assert len(self.keys) == len(x), (len(self.keys), len(x))
        number = self.layer + _APPLICATION * self._n_applied
        self._n_applied += 1
        return _uniform(self.keys, number, n) >= self.p


class KeyedStochasticDepth(KeyedDropout):
    """Stochastic depth (Huang et al. 2016): in training the whole residual of a sample is zero with probability `p`."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) -> the same shape."""
        if not self.training or self.p == 0:
            return x
        return x * self._kept(x, 1).view(-1, *[1] * (x.ndim - 1)) / (1 - self.p)


def _uniform(keys: Tensor, layer: int, n: int) -> Tensor:
    """Return uniform numbers (B, n) float32 in [0, 1), multiples of 2**-24."""
    index = torch.arange(1, n + 1, device=keys.device) * _GOLDEN
    bits = _mixed(_mixed(keys + layer)[:, None] + index)
    return _shifted(bits, 40).to(torch.float32) * 2.0**-24


def _mixed(z: Tensor) -> Tensor:
    """Apply the finalizer of SplitMix64, in int64 arithmetic that wraps around."""
    z = (z ^ _shifted(z, 30)) * _MIX1
    z = (z ^ _shifted(z, 27)) * _MIX2
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Return `z >> bits` filled with zeros; torch's shift fills with the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def has_dropout(model: nn.Module) -> bool:
    """Return whether training needs dropout keys: a layer of `model` drops elements or residuals."""
    return any(isinstance(module, KeyedDropout) and module.p > 0 for module in model.modules())


def set_batch_context(model: nn.Module, *, group_sizes: Sequence[int], keys: Tensor | None) -> None:
    """Set the BatchNorm groups and dropout keys of `model` for one forward pass in training.

    Args:
        group_sizes: images of each BatchNorm group, in the order of the batch.
        keys: (B,) int64, see `sample_keys`; None for a model that does not drop.
    """
    assert keys is None or sum(group_sizes) == len(keys), (group_sizes, len(keys))
    for module in model.modules():
        if isinstance(module, GroupedBatchNorm2d):
            module.group_sizes = group_sizes
        elif isinstance(module, KeyedDropout):
            module.keys = keys
