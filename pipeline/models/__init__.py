"""Networks: torchvision's ResNets with a choice of stem, a ResNet-9 and a small CNN."""

from pipeline.models.layers import set_batch_context
from pipeline.models.registry import NETWORKS, build_network, feature_dimension, load_backbone, set_head

__all__ = ["NETWORKS", "build_network", "feature_dimension", "load_backbone", "set_batch_context", "set_head"]
