"""Copies of arrays to the device that never wait for it."""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to the device; on a CPU the result shares its memory.

    A GPU copies from page-locked memory while this process continues. From other memory, the process would wait until
    all queued work of the GPU has ended. torch reuses the page-locked memory only after the copy.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
