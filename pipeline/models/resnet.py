"""ResNets (He et al. 2016) for images from 8 to 512 pixels."""

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from pipeline.models.layers import GroupedBatchNorm2d
from pipeline.models.network import Network
from pipeline.models.small_maps import with_small_maps

if TYPE_CHECKING:
    from torchvision.models import ResNet as Backbone


RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
"""torchvision's names, which params.yaml uses too."""

Stem = Literal["imagenet", "cifar"]


class ResNet(Network):
    """A torchvision ResNet that exposes its penultimate features.

    The wrapped network is `backbone`; its state dict keeps torchvision's names under that prefix.
    """

    def __init__(self, backbone: "Backbone") -> None:
        super().__init__()
        self.backbone = backbone

    @property
    def input_layer(self) -> nn.Module:
        """The convolution of the stem."""
        layer: nn.Module = self.backbone.conv1
        return layer

    @property
    def output_layer(self) -> nn.Module:
        """The classifier."""
        layer: nn.Module = self.backbone.fc
        return layer

    def features(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, D), the pooled output of the last block."""
        net = self.backbone
        x = net.maxpool(net.relu(net.bn1(net.conv1(images))))
        x = net.layer4(net.layer3(net.layer2(net.layer1(x))))
        return torch.flatten(net.avgpool(x), 1)

    def classify(self, features: Tensor) -> Tensor:
        """(N, D) -> (N, n_classes) logits."""
        logits: Tensor = self.backbone.fc(features)
        return logits


def resnet(network: str, n_classes: int, *, stem: Stem) -> ResNet:
    """Build a ResNet with weights sampled from torch's default generator.

    Args:
        stem: `imagenet` is torchvision's 7x7 convolution of stride 2 with max-pooling; `cifar` a
            3x3 convolution of stride 1 without pooling, as He et al. use on small images.
    """
    # Imported here, since it takes a second or two and launchers build no network.
    from torchvision.models import get_model

    backbone = get_model(network, weights=None, num_classes=n_classes, norm_layer=GroupedBatchNorm2d)
    if stem == "cifar":
        backbone.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(backbone.conv1.weight, mode="fan_out", nonlinearity="relu")
        backbone.maxpool = nn.Identity()
    with_small_maps(backbone)
    return ResNet(backbone)
