"""`finetune`: the extractor networks, one training run or one for each fold for each of `networks`."""

from typing import Literal, Self

from pydantic import model_validator

from pipeline.config.base import Positive, Seed
from pipeline.config.recipe import OptimizedRun


class FinetuneConfig(OptimizedRun):
    """The `finetune` section: a recipe, where the weights start, and which images they see.

    Attributes:
        folds: K; the training images are cut into K parts, and network k is trained on all but part
            k, so that what is said of an image comes from a network that never saw it (one that
            did memorises wrong labels too). An epoch is one of its own images. 1: one network on all
            images, as the paper has it.
        trainable: `all` weights, by the recipe; or the `head` alone, on a backbone that stays as
            `weights` has it, statistics of BatchNorm included. The head is then a logistic regression
            on standardised features of images without augmentation, which takes no optimizer: of the
            other keys `weights`, `stem`, `normalization`, `folds`, `seed` (of the folds alone),
            `augmentation.crop_size`, `eval_batch_size`, `simulated_workers`, `workers` and
            `threads_per_worker` (who computes) apply, and the rest describe a run that is not made.
        weights: `imagenet` (torchvision's, downloaded), `none` (from scratch), or the path of a
            state dict; `{network}` in it stands for the architecture.
        normalization: `dataset` (mean and spread of the training images) or `imagenet` (those that
            ImageNet weights were trained with).
        seed: of the head's or the network's initialisation, the order and the augmentation; the number
            of a replicate is added to it.
    """

    folds: Positive = 1
    trainable: Literal["all", "head"] = "all"
    weights: str
    normalization: Literal["dataset", "imagenet"] = "dataset"
    seed: Seed = 0

    @model_validator(mode="after")
    def _weights_fit_the_stem(self) -> Self:
        if self.weights == "imagenet" and self.stem != "imagenet":
            raise ValueError("weights: imagenet have the 7x7 first layer; set stem: imagenet, or weights: none")
        return self

    @model_validator(mode="after")
    def _a_frozen_backbone_is_pretrained(self) -> Self:
        if self.trainable == "head" and self.weights == "none":
            raise ValueError(
                "trainable: head leaves the backbone as it is, and weights: none is a random one; give weights"
            )
        return self
