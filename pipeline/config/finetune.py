"""`finetune`: the extractor networks, one training run for each of `networks`."""

from pipeline.config.base import Seed
from pipeline.config.recipe import OptimizedRun


class FinetuneConfig(OptimizedRun):
    """The `finetune` section: a recipe and where the weights start.

    Attributes:
        weights: `imagenet` (torchvision's, downloaded), `none` (from scratch), or the path of a
            state dict; `{network}` in it stands for the network's name.
        seed: of the head's or the network's initialisation, the order and the augmentation.
    """

    weights: str
    seed: Seed = 0
