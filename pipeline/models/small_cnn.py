"""A small convolutional network with dropout, from the MNIST example on which Rand (2021) simulates large batches.

It has two convolutions, pooling and two linear layers, and no BatchNorm, so a batch may be split in any way.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.models.layers import KeyedDropout
from pipeline.models.network import Network

_WIDTHS = 32, 64
_FEATURES = 128
_POOLED = 4


class SmallCnn(Network):
    """A small CNN for images of 8 pixels or more: the pooled feature map is always 4x4."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, _WIDTHS[0], 3, padding=1)
        self.conv2 = nn.Conv2d(_WIDTHS[0], _WIDTHS[1], 3, padding=1)
        self.dropout1 = KeyedDropout(0.25, layer=1)
        self.fc1 = nn.Linear(_WIDTHS[1] * _POOLED**2, _FEATURES)
        self.dropout2 = KeyedDropout(0.5, layer=2)
        self.fc2 = nn.Linear(_FEATURES, n_classes)

    @property
    def input_layer(self) -> nn.Module:
        """The first convolution."""
        return self.conv1

    @property
    def output_layer(self) -> nn.Module:
        """The classifier."""
        return self.fc2

    def features(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, 128), the input of the last linear layer."""
        x = F.relu(self.conv2(F.relu(self.conv1(images))))
        x = self.dropout1(F.adaptive_max_pool2d(x, _POOLED))
        return F.relu(self.fc1(x.flatten(1)))

    def classify(self, features: Tensor) -> Tensor:
        """(N, 128) -> (N, n_classes) logits."""
        logits: Tensor = self.fc2(self.dropout2(features))
        return logits
