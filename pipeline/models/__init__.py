"""Networks: ResNets with a choice of stem, a ResNet-9, a small CNN, and the models of timm and torchvision."""

from pipeline.models.layers import set_batch_context
from pipeline.models.registry import (
    NETWORKS,
    build_network,
    feature_dimension,
    full_name,
    is_timm,
    load_backbone,
    set_head,
)

__all__ = [
    "NETWORKS",
    "build_network",
    "feature_dimension",
    "full_name",
    "is_timm",
    "load_backbone",
    "set_batch_context",
    "set_head",
]
