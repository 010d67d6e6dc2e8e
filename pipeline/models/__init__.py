"""The networks: torchvision's ResNets with a choice of stem."""

from pipeline.models.resnet import NETWORKS, build, feature_dimension
from pipeline.models.transfer import load_backbone

__all__ = ["NETWORKS", "build", "feature_dimension", "load_backbone"]
