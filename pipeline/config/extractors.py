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

_ARCHITECTURES: tuple[str, ...] = get_args(Architecture)
_REPLICATE = r"-r[1-9][0-9]?"
_NAME = re.compile(f"({'|'.join(_ARCHITECTURES)})({_REPLICATE})?")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        names = ", ".join(_ARCHITECTURES[:-1])
        raise ValueError(
            f'"{name}" is not allowed: Input should be {names} or {_ARCHITECTURES[-1]}, '
            "or a replicate of one from -r1 to -r99, such as resnet18-r1"
        )
    return name


NetworkName = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema({"anyOf": [{"enum": list(_ARCHITECTURES)}, {"type": "string", "pattern": f"^{_NAME.pattern}$"}]}),
]
"""An extractor: an architecture such as `resnet18`, or a replicate of it with other random numbers (`resnet18-r1`)."""


def base_architecture(network: str) -> str:
    """Return the architecture of an extractor: `resnet18` for `resnet18` and for `resnet18-r2`."""
    return _parts(network)[0]


def replicate_number(network: str) -> int:
    """Return the number of the replicate, which is added to every seed: 2 for `resnet18-r2`, 0 for `resnet18`."""
    return int((_parts(network)[1] or "-r0").removeprefix("-r"))


def _parts(network: str) -> tuple[str, str | None]:
    match = _NAME.fullmatch(network)
    assert match is not None, network
    return match[1], match[2]


class ExtractConfig(Section):
    """The `extract` section: penultimate features of all images.

    Attributes:
        batch_size: images per forward pass; bounds the memory.
        flip_tta: average the features and probabilities of each image and its mirror image (test-time augmentation),
            in twice the time; for images without a meaningful left and right.
    """

    batch_size: Positive = 256
    flip_tta: bool = False
