"""The networks: torchvision's ResNets with a choice of stem, and a small CNN."""

from pipeline.models.batch_context import describe_batch
from pipeline.models.registry import NETWORKS, build, feature_dimension
from pipeline.models.transfer import load_backbone, set_head

__all__ = ["NETWORKS", "build", "describe_batch", "feature_dimension", "load_backbone", "set_head"]
