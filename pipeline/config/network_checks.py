"""Check that the images and the initial weights fit the networks that params.yaml names."""

from typing import TYPE_CHECKING

from pipeline.config.extractors import MIN_PIXELS, WITHOUT_IMAGENET_WEIGHTS, base_architecture
from pipeline.errors import InputError

if TYPE_CHECKING:
    from pipeline.config.params import Params
    from pipeline.config.recipe import Augmentation


def check_networks(params: "Params", source: str) -> None:
    """Check extractors and models of studies; the recipes of the studies are valid.

    Raises:
        InputError: the images are too small for a network, or it has no ImageNet weights.
    """
    image_size = params.prepare.image_size
    for name in params.networks:
        architecture = base_architecture(name)
        _check_size(f"{source}: networks", architecture, params.finetune.augmentation, "finetune", image_size)
        weights = params.finetune.weights
        if weights in ("imagenet", "pretrained") and architecture in WITHOUT_IMAGENET_WEIGHTS:
            raise InputError(
                f"{source}: finetune.weights: {weights}, but there are none of {architecture}; set weights: none, or "
                "the path of your own"
            )
    for name, study in params.studies.items():
        augmentation = study.effective_recipe(params.train).augmentation
        for model in study.models:
            _check_size(f"{source}: studies.{name}.models", model, augmentation, "train", image_size)


def _check_size(key: str, network: str, augmentation: "Augmentation", section: str, image_size: int) -> None:
    smallest, crop = MIN_PIXELS.get(network, 0), augmentation.crop_size
    if (crop or image_size) < smallest:
        cause = f"prepare.image_size is {image_size}" if crop is None else f"{section}'s crop_size is {crop}"
        raise InputError(f"{key}: {network} needs images of {smallest} pixels or more, and {cause}; raise it")
