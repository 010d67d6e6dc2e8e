"""BatchNorm over parts of a batch: ghost batch normalisation (Hoffer, Hubara & Soudry 2017, algorithm 1).

A job of many workers has one BatchNorm group per worker. One process that stands in for several of
them passes their images forward together, which is faster, and keeps the groups apart here.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GroupedBatchNorm2d(nn.BatchNorm2d):
    """In training, every group of the batch is normalised by its own mean and variance.

    The running statistics take no part in training: they are set once, from the final weights.
    Parameters and buffers have the names of `nn.BatchNorm2d`.

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
        if len(self.group_sizes) < 2:
            return self._normalise(input)
        return torch.cat([self._normalise(group) for group in input.split(list(self.group_sizes))])

    def _normalise(self, group: Tensor) -> Tensor:
        mean = variance = None
        if self.collected is not None:
            # With a momentum of 1 the "running" values are this group's own.
            mean, variance = statistics = torch.zeros_like(torch.stack([self.weight, self.bias]))
            self.collected.append(statistics)
        return F.batch_norm(group, mean, variance, self.weight, self.bias, training=True, momentum=1.0, eps=self.eps)
