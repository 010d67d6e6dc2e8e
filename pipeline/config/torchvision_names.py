"""Classifiers of torchvision that a study can train, and the images that they take.

params.yaml is checked without torch, so names and sizes are listed here. A test compares them with torchvision.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated

from pydantic import StringConstraints

TORCHVISION_PREFIX = "torchvision/"

TorchvisionName = Annotated[str, StringConstraints(pattern=rf"^{TORCHVISION_PREFIX}[a-z0-9_]+$")]
"""`torchvision/` and the name of a classifier in `torchvision.models`, such as `torchvision/vgg16`, which a study can
train from scratch. Images enter at the size of the crop."""

# Without SqueezeNets, which do not end in a linear layer.
CLASSIFIERS = frozenset({
    "alexnet", "googlenet", "inception_v3", "maxvit_t", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small",
    "convnext_tiny", "convnext_small", "convnext_base", "convnext_large",
    "densenet121", "densenet161", "densenet169", "densenet201",
    "efficientnet_b0", "efficientnet_b1", "efficientnet_b2", "efficientnet_b3", "efficientnet_b4", "efficientnet_b5",
    "efficientnet_b6", "efficientnet_b7", "efficientnet_v2_s", "efficientnet_v2_m", "efficientnet_v2_l",
    "mnasnet0_5", "mnasnet0_75", "mnasnet1_0", "mnasnet1_3",
    "regnet_x_400mf", "regnet_x_800mf", "regnet_x_1_6gf", "regnet_x_3_2gf", "regnet_x_8gf", "regnet_x_16gf",
    "regnet_x_32gf", "regnet_y_400mf", "regnet_y_800mf", "regnet_y_1_6gf", "regnet_y_3_2gf", "regnet_y_8gf",
    "regnet_y_16gf", "regnet_y_32gf", "regnet_y_128gf",
    "resnet18", "resnet34", "resnet50", "resnet101", "resnet152",
    "resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d", "wide_resnet50_2", "wide_resnet101_2",
    "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5", "shufflenet_v2_x2_0",
    "swin_t", "swin_s", "swin_b", "swin_v2_t", "swin_v2_s", "swin_v2_b",
    "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19", "vgg19_bn",
    "vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14",
})  # fmt: skip
"""Names without the prefix."""

# First letters of names -> the smallest and the largest side of the images in pixels; the others take any.
_SIDES: Mapping[str, tuple[int, int | None]] = {
    "alexnet": (63, None), "convnext": (32, None), "densenet": (29, None), "googlenet": (15, None),
    "inception": (75, None), "maxvit": (221, 224), "swin": (4, None), "vgg": (32, None), "vit": (224, 224),
}  # fmt: skip
_SIMILAR = 0.8


def torchvision_sides(network: str) -> tuple[int, int | None]:
    """Return the smallest and the largest side of the images that a classifier takes, in pixels; None: no largest.

    Args:
        network: with the prefix.

    Raises:
        ValueError: torchvision has no such classifier, or it does not end in a linear layer.
    """
    name = network.removeprefix(TORCHVISION_PREFIX)
    if name not in CLASSIFIERS:
        close = difflib.get_close_matches(name, sorted(CLASSIFIERS), n=3, cutoff=_SIMILAR)
        similar = " or ".join(f"{TORCHVISION_PREFIX}{other}" for other in close)
        hint = f"did you mean {similar}?" if close else "use another model"
        raise ValueError(f"{network} is not a classifier of torchvision that ends in a linear layer; {hint}")
    return next((sides for start, sides in _SIDES.items() if name.startswith(start)), (1, None))
