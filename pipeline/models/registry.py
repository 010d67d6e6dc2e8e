"""Build networks by name, and load weights from other sources into them."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pipeline.errors import InputError
from pipeline.models.network import Network
from pipeline.models.resnet import RESNETS, ResNet, Stem, resnet
from pipeline.models.resnet9 import ResNet9
from pipeline.models.small_cnn import SmallCnn
from pipeline.models.timm_networks import TIMM_PREFIX, build_timm_network, timm_feature_dimension, timm_format
from pipeline.models.torchvision_networks import (
    TORCHVISION_PREFIX,
    build_torchvision_network,
    torchvision_feature_dimension,
)

_HEAD = ("fc.weight", "fc.bias")
# BatchNorm's count of batches is unused here. Files of torch before 0.4.1 lack it, including those of torchvision.
_COUNTER = "num_batches_tracked"

# Channels of the blocks. The second has those of airbench94 (Jordan 2024).
_RESNET9_WIDTHS = {"resnet9": (32, 128, 128), "resnet9_wide": (64, 256, 256)}
_FEATURES = {
    "resnet18": 512, "resnet34": 512, "resnet50": 2048, "resnet101": 2048, "resnet152": 2048, "small_cnn": 128,
    **{network: widths[-1] for network, widths in _RESNET9_WIDTHS.items()},
}  # fmt: skip
NETWORKS = tuple(_FEATURES)
"""The names used in params.yaml."""


def set_head(model: Network, weight: Tensor, bias: Tensor) -> None:
    """Make the logits of `model` its features times `weight` (n_classes, D) plus `bias` (n_classes,)."""
    layer = model.output_layer
    assert isinstance(layer, nn.Linear), type(layer)
    with torch.no_grad():
        layer.weight.copy_(weight / model.logit_scale)
        layer.bias.copy_(bias / model.logit_scale)


def load_backbone(model: ResNet, state: Mapping[str, Tensor], *, source: str) -> None:
    """Copy all tensors but the head into `model`, which keeps its fresh head.

    Args:
        state: with torchvision's names, or those of this project's files (prefix `backbone.`).
        source: name of the weights in errors.

    Raises:
        InputError: a tensor is missing, unknown, of another shape, sparse, or holds NaN or infinity.
    """
    loaded = {name.removeprefix("backbone."): tensor for name, tensor in state.items()}
    own = model.backbone.state_dict()
    needed = {name for name in own if name not in _HEAD and not name.endswith(_COUNTER)}
    for name in sorted(needed - set(loaded)):
        raise InputError(f"{source}: has no tensor {name}; use weights of the same network and stem")
    for name in sorted(set(loaded) - set(own)):
        raise InputError(f"{source}: tensor {name} does not belong to this network; use weights of the same one")
    for name in sorted(set(loaded) - set(_HEAD)):
        if loaded[name].shape != own[name].shape:
            raise InputError(
                f"{source}: tensor {name} is {tuple(loaded[name].shape)}, this network's is "
                f"{tuple(own[name].shape)}; use weights of the same network and stem"
            )
        if loaded[name].layout != torch.strided or not bool(torch.isfinite(loaded[name].float()).all()):
            raise InputError(f"{source}: tensor {name} is sparse or holds NaN or infinity; use dense, finite weights")
    head = {name: own[name] for name in _HEAD}
    model.backbone.load_state_dict({**own, **loaded, **head})


def build_network(network: str, n_classes: int, *, stem: Stem, seed: int) -> Network:
    """Build a network with fresh weights, the same for the same seed; global generators keep their state.

    Args:
        network: one of `NETWORKS`, or a network of timm or torchvision.
        stem: of the ResNets in `NETWORKS`, see `resnet`; the other networks have no choice.

    Raises:
        InputError: no network has this name.
    """
    _check_known(network)
    with torch.random.fork_rng(devices=[]):
        # `torch.manual_seed` would reseed the generators of all GPUs as well.
        torch.default_generator.manual_seed(seed)
        if is_timm(network):
            return build_timm_network(network, n_classes)
        if network.startswith(TORCHVISION_PREFIX):
            return build_torchvision_network(network, n_classes)
        if network in RESNETS:
            return resnet(network, n_classes, stem=stem)
        if network in _RESNET9_WIDTHS:
            return ResNet9(n_classes, widths=_RESNET9_WIDTHS[network])
        return SmallCnn(n_classes)


def _check_known(network: str) -> None:
    """Check that a network without a prefix is one of `NETWORKS`."""
    if network not in NETWORKS and not network.startswith((TIMM_PREFIX, TORCHVISION_PREFIX)):
        raise InputError(f"networks: {network} is unknown; use one of {', '.join(NETWORKS)}, or timm/NAME")


def is_timm(network: str) -> bool:
    """Return whether a network is one of timm."""
    return network.startswith(TIMM_PREFIX)


def full_name(network: str) -> str:
    """Return the full name of a network: for those of timm with the tag, which decides weights and image format.

    Raises:
        InputError: timm has no such network.
    """
    return timm_format(network).name if is_timm(network) else network


def feature_dimension(network: str) -> int:
    """Return the dimension D of the penultimate features.

    Raises:
        InputError: no network has this name.
    """
    _check_known(network)
    if network.startswith(TORCHVISION_PREFIX):
        return torchvision_feature_dimension(network)
    return timm_feature_dimension(network) if is_timm(network) else _FEATURES[network]
