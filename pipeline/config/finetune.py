"""`finetune`: the extractor networks, one training run for each of `networks`."""

from typing import Literal, Self

from pydantic import model_validator

from pipeline.config.base import Seed
from pipeline.config.recipe import OptimizedRun


class FinetuneConfig(OptimizedRun):
    """The `finetune` section: a recipe and where the weights start.

    Attributes:
        weights: `imagenet` (torchvision's, downloaded), `none` (from scratch), or the path of a
            state dict; `{network}` in it stands for the architecture.
        normalisation: `dataset` (mean and spread of the training images) or `imagenet` (those that
            ImageNet weights were trained with).
        seed: of the head's or the network's initialisation, the order and the augmentation; the number
            of a replicate is added to it.
    """

    weights: str
    normalisation: Literal["dataset", "imagenet"] = "dataset"
    seed: Seed = 0

    @model_validator(mode="after")
    def _weights_fit_the_stem(self) -> Self:
        if self.weights == "imagenet" and self.stem != "imagenet":
            raise ValueError("weights: imagenet have the 7x7 first layer; set stem: imagenet, or weights: none")
        return self
