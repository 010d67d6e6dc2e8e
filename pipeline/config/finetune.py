"""The `finetune` section: training of the extractor networks, with one run per network or per network and fold."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from pipeline.config.base import Positive, Seed
from pipeline.config.extractors import TimmName
from pipeline.config.recipe import OptimizedRun

Commit = Annotated[str, StringConstraints(pattern="^[0-9a-f]{40}$")]
"""A commit of a repository on the Hugging Face hub, in full."""


class FinetuneConfig(OptimizedRun):
    """The `finetune` section: a recipe, the initial weights, and cross-validation folds.

    Attributes:
        folds: K, the number of folds of the training images. Network k is trained on all folds but fold k, and predicts
            the images of fold k. A network that was trained on an image also memorizes a wrong label. An epoch is one
            pass over the images of a network. 1: one network on all images, as in the paper.
        trainable: `all` weights, by the recipe; or the `head` alone, on a frozen backbone with the statistics of
            BatchNorm of `weights`. The head is then a logistic regression on standardized features of images without
            augmentation, fitted without an optimizer. Of the other keys, `weights`, `stem`, `normalization`, `folds`,
            `seed` (of the folds), `augmentation.crop_size`, `eval_batch_size`, `simulated_workers`, `workers` and
            `threads_per_worker` apply, and the rest are unused.
        weights: `none` (from scratch); `imagenet` (torchvision's, downloaded); `pretrained` (for ResNets the same; for
            networks of timm those that timm publishes on the Hugging Face hub, downloaded); or the path of a state
            dict (.safetensors, or a file of torch.save), in which `{network}` is replaced by the architecture.
        revisions: by network of timm, the commit of its repository on the hub from which `pretrained` weights are
            taken. A download needs one, so that everyone trains from the same weights; the stage names the newest.
        normalization: `dataset` (mean and standard deviation of the training images) or `imagenet` (those that
            ImageNet weights were trained with). Networks of timm have their own, with any weights.
        seed: of the initialization of the network or head, the order and the augmentation; the number of a replicate
            is added to it.
        noise_scale_steps: refused, since fine-tuning reports no noise scale. Set it in `train` or in a study.
    """

    folds: Positive = 1
    trainable: Literal["all", "head"] = "all"
    weights: str
    revisions: dict[TimmName, Commit] = Field(default={})
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
            raise ValueError("trainable: head freezes the backbone, and weights: none is a random one; give weights")
        return self

    @model_validator(mode="after")
    def _no_key_is_without_effect(self) -> Self:
        if self.noise_scale_steps is not None:
            raise ValueError(
                f"noise_scale_steps: {self.noise_scale_steps}, but fine-tuning reports no noise scale; remove it here, "
                "or give it in the section train"
            )
        return self
