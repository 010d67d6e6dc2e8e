"""Networks by name."""

import torch

from pipeline.models.network import Network
from pipeline.models.resnet import RESNETS, Stem, resnet
from pipeline.models.small_cnn import SmallCnn

_FEATURES = {"resnet18": 512, "resnet34": 512, "resnet50": 2048, "resnet101": 2048, "resnet152": 2048, "small_cnn": 128}

NETWORKS = tuple(_FEATURES)
"""The names used in params.yaml."""


def build(network: str, n_classes: int, *, stem: Stem, seed: int) -> Network:
    """A network with fresh weights, the same for the same seed; the global generators are left alone.

    Args:
        network: one of `NETWORKS`.
        stem: of a ResNet, see `resnet`; `small_cnn` has one only.
    """
    with torch.random.fork_rng(devices=[]):
        # `torch.manual_seed` would reseed the generators of all GPUs as well.
        torch.default_generator.manual_seed(seed)
        return resnet(network, n_classes, stem=stem) if network in RESNETS else SmallCnn(n_classes)


def feature_dimension(network: str) -> int:
    """D of the penultimate features."""
    return _FEATURES[network]
