"""Check what a file of a trained network says before the network is used: anyone may have written the file."""

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import nn

from pipeline.errors import InputError, lacks_resources, short_reason
from pipeline.training.settings import ImageFormat

LARGEST_IMAGE = 512
"""Side in pixels, the largest of `prepare.image_size`."""

_Model = TypeVar("_Model", bound=nn.Module)


def check_format(image_format: ImageFormat) -> None:
    """Check that images can have this format.

    Raises:
        ValueError: a side is no integer or out of range; mean or std are not three finite numbers, or a std is not
            above 0.
    """
    image_size, crop_size = image_format.image_size, image_format.crop_size
    if type(image_size) is not int or type(crop_size) is not int or not 0 < crop_size <= image_size <= LARGEST_IMAGE:
        raise ValueError(f"image_size {image_size!r} and crop_size {crop_size!r}")
    if not _are_three_numbers(image_format.mean) or not _are_three_numbers(image_format.std):
        raise ValueError(f"mean {image_format.mean!r} and std {image_format.std!r}")
    if min(image_format.std) <= 0:
        raise ValueError(f"std {image_format.std!r}")


def _are_three_numbers(values: Sequence[float]) -> bool:
    is_list = isinstance(values, list | tuple) and len(values) == 3
    return is_list and all(type(value) in (int, float) and math.isfinite(value) for value in values)


def check_weights(model: nn.Module) -> None:
    """Check that all parameters and buffers are finite.

    Raises:
        ValueError: one is not.
    """
    for name, tensor in model.state_dict().items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} holds NaN or infinity")


def on_device(model: _Model, device: torch.device | str) -> _Model:
    """Return the model on a device.

    Raises:
        InputError: this machine or torch has no such device.
    """
    try:
        return model.to(device)
    # torch reports a kind of device that it was built without by AssertionError.
    except (RuntimeError, AssertionError) as error:
        if lacks_resources(error):
            raise
        raise InputError(f"device: {device} ({short_reason(error)}); give cpu, or cuda where there is a GPU") from None
