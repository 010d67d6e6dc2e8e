"""Networks, and what is extracted from them."""

import re
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, WithJsonSchema

from pipeline.config.base import Positive, Section

# Names of extractors: an architecture, or a replicate of it with everything random drawn anew.


Architecture = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]
"""What extractors can be, by torchvision's names."""

_ARCHITECTURES: tuple[str, ...] = get_args(Architecture)
_REPLICATE = r"-r[1-9][0-9]?"
_NAME = re.compile(f"({'|'.join(_ARCHITECTURES)})({_REPLICATE})?")


def _known(name: str) -> str:
    if not _NAME.fullmatch(name):
        known = ", ".join(_ARCHITECTURES[:-1])
        raise ValueError(
            f'"{name}" is not allowed: Input should be {known} or {_ARCHITECTURES[-1]}, '
            "or a replicate of one from -r1 to -r99, such as resnet18-r1"
        )
    return name


NetworkName = Annotated[
    str,
    AfterValidator(_known),
    WithJsonSchema({"anyOf": [{"enum": list(_ARCHITECTURES)}, {"type": "string", "pattern": f"^{_NAME.pattern}$"}]}),
]
"""An extractor: `resnet18` is one, and `resnet18-r1`, `resnet18-r2`, ... are replicates of it."""


def base_architecture(network: str) -> str:
    """`resnet18` of `resnet18` and of `resnet18-r2`."""
    return _parts(network)[0]


def replicate_number(network: str) -> int:
    """2 of `resnet18-r2`, and 0 of `resnet18`; it is added to every seed."""
    return int((_parts(network)[1] or "-r0").removeprefix("-r"))


def _parts(network: str) -> tuple[str, str | None]:
    found = _NAME.fullmatch(network)
    assert found is not None, network
    return found[1], found[2]


# `extract`: penultimate features of all images.


class ExtractConfig(Section):
    """The `extract` section.

    Attributes:
        batch_size: images per forward pass; bounds the memory.
        flip_tta: pass each image and its mirror image, and take the means of their features and
            probabilities, at twice the time; for pictures whose left and right mean nothing.
    """

    batch_size: Positive = 256
    flip_tta: bool = False
