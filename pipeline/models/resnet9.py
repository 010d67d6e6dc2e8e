"""A ResNet-9 for small images, which keeps their resolution through the first convolutions.

The layers are those of Jordan (2024, arXiv:2404.00498, 94 % on CIFAR-10 in 3.29 seconds on one GPU) with a residual
connection in each block, as in the ResNet-9 of Page (2018, How to train your ResNet), and without whitening.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.models.layers import GroupedBatchNorm2d
from pipeline.models.resnet import ResNet

_STEM_CHANNELS = 24
# A step changes the logits in proportion to the square of this factor. So the output layer learns more slowly than the
# convolutions, which need a high rate.
_LOGIT_SCALE = 0.25


class _Block(nn.Module):
    """Halves the resolution, then adds a residual at the lower one: (N, C, H, W) -> (N, channels, H // 2, W // 2)."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.bn1 = GroupedBatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = GroupedBatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.bn1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(x + self.bn2(self.conv2(x)))


class _Backbone(nn.Module):
    """All layers; the first and the last have the names of torchvision's ResNets."""

    def __init__(self, n_classes: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, _STEM_CHANNELS, 2)
        inputs = (_STEM_CHANNELS, *widths[:-1])
        self.blocks = nn.Sequential(*(_Block(*channels) for channels in zip(inputs, widths, strict=True)))
        self.fc = nn.Linear(widths[-1], n_classes)


class ResNet9(ResNet):
    """A ResNet-9 for images of 9 pixels or more: a 2x2 convolution without padding, three blocks, global max-pooling.

    Args:
        widths: channels of the three blocks.
    """

    logit_scale = _LOGIT_SCALE

    def __init__(self, n_classes: int, *, widths: Sequence[int]) -> None:
        super().__init__(_Backbone(n_classes, widths))

    def features(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, D), the largest value of each channel of the last block."""
        maps: Tensor = self.backbone.blocks(F.gelu(self.backbone.conv1(images)))
        # Unlike adaptive max-pooling, `amax` has a deterministic gradient on GPUs.
        return maps.amax((2, 3))

    def classify(self, features: Tensor) -> Tensor:
        """(N, D) -> (N, n_classes) logits."""
        return super().classify(features) * self.logit_scale
