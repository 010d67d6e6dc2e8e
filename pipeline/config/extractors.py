"""Names of the extractor networks, and the `extract` section."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, WithJsonSchema

from pipeline.config.base import Positive, Section

Architecture = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet9", "resnet9_wide"]
"""Architectures of extractors: torchvision's, by its names, and `resnet9` for small images in two widths."""

MIN_PIXELS: Mapping[str, int] = {"resnet9": 9, "resnet9_wide": 9}
"""Smallest side of the images that an architecture reads, if above that of `prepare.image_size`."""

WITHOUT_IMAGENET_WEIGHTS = frozenset({"resnet9", "resnet9_wide"})

TIMM_PREFIX = "timm/"
"""Begins the names of timm's networks, as on the Hugging Face hub; files of such a network are in folders `timm`."""

_ARCHITECTURES: tuple[str, ...] = get_args(Architecture)
# Endings of file names in data/: a network of such a name would overwrite a file of another one.
_ENDINGS = "test|pca|maps|confidence|probabilities|provenance|dynamics|by_network"
# Without a folder of its own, `..` or a leading dot, so that a name is a safe path.
_TIMM_NAME = rf"{TIMM_PREFIX}[a-z0-9_]+(?:\.(?!(?:{_ENDINGS})(?:-|$))[a-z0-9_]+)?"
_REPLICATE = r"-r[1-9][0-9]?"
_NAME = re.compile(f"({'|'.join(_ARCHITECTURES)}|{_TIMM_NAME})({_REPLICATE})?")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        names = ", ".join(_ARCHITECTURES[:-1])
        raise ValueError(
            f'"{name}" is not allowed: Input should be {names} or {_ARCHITECTURES[-1]}, '
            "a network of timm such as timm/tf_efficientnet_lite0, "
            "or a replicate of one from -r1 to -r99, such as resnet18-r1"
        )
    return name


def _check_timm_name(name: str) -> str:
    if not re.fullmatch(_TIMM_NAME, name):
        raise ValueError(f'"{name}" is not allowed: Input should be a network of timm, timm/NAME or timm/NAME.TAG')
    return name


NetworkName = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema({"anyOf": [{"enum": list(_ARCHITECTURES)}, {"type": "string", "pattern": f"^{_NAME.pattern}$"}]}),
]
"""An extractor: an architecture such as `resnet18` or `timm/vit_tiny_patch16_224.augreg_in21k`, or a replicate of it
with other random numbers (`resnet18-r1`)."""

TimmName = Annotated[
    str, AfterValidator(_check_timm_name), WithJsonSchema({"type": "string", "pattern": f"^{_TIMM_NAME}$"})
]
"""`timm/`, a model of timm, and maybe the tag of its weights; without one, timm's default."""


def base_architecture(network: str) -> str:
    """Return the architecture of an extractor: `resnet18` for `resnet18` and for `resnet18-r2`."""
    return _parts(network)[0]


def is_network_name(text: str) -> bool:
    """Return whether params.yaml would accept an extractor of this name."""
    return _NAME.fullmatch(text) is not None


def is_timm(network: str) -> bool:
    """Return whether an extractor is a network of timm."""
    return network.startswith(TIMM_PREFIX)


def replicate_number(network: str) -> int:
    """Return the number of the replicate, which is added to every seed: 2 for `resnet18-r2`, 0 for `resnet18`."""
    return int((_parts(network)[1] or "-r0").removeprefix("-r"))


def _parts(network: str) -> tuple[str, str | None]:
    match = _NAME.fullmatch(_check_name(network))  # of a table that anybody may have written
    assert match is not None
    return match[1], match[2]


class ExtractConfig(Section):
    """The `extract` section: penultimate features of all images.

    Attributes:
        batch_size: images per forward pass; bounds the memory.
        flip_tta: average the features and probabilities of each image and its mirror image (test-time augmentation),
            in twice the time; for images without a meaningful left and right.
        fold_probabilities: of a training image, with `finetune.folds`: `out_of_fold`, by the network that did not train
            on it; or `averaged`, the mean of that and of the mean over the networks that did, at no extra pass. The
            latter have learned its label in part, so that `filter.drop_fraction: estimated` is too low with `averaged`.
    """

    batch_size: Positive = 256
    flip_tta: bool = False
    fold_probabilities: Literal["out_of_fold", "averaged"] = "out_of_fold"
