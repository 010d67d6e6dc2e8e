"""The interface of training images, copies to the device, and synthetic images for timing."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BatchRequest = tuple[NDArray[np.int64], NDArray[np.int64] | None]
"""Sample ids (B,) and the epoch of each (B,); None for evaluation."""


class TrainingImages(Protocol):
    """Images by sample id, as float32 (B, 3, C, C) on the device; in memory, or read from files."""

    def __len__(self) -> int: ...

    def with_seed(self, seed: int) -> Self:
        """Return the same images with the augmentation of another seed."""
        ...

    def training_batch(self, sample_ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        """Return augmented images by sample ids (B,) and epochs (B,); they depend only on seed, epoch and id."""
        ...

    def evaluation_batch(self, sample_ids: NDArray[np.int64]) -> Tensor:
        """Return images by sample ids (B,), without augmentation."""
        ...

    def prefetch(self, requests: Iterable[BatchRequest]) -> AbstractContextManager[None]:
        """Prepare the requested batches ahead, in order, while the context is active."""
        ...


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to the device; on a CPU the result shares its memory.

    A GPU copies from page-locked memory while this process continues. From other memory, the process would wait until
    all queued work of the GPU has ended. torch reuses the page-locked memory only after the copy.
    """
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class SyntheticImages:
    """`TrainingImages` without reading: every batch has the same random numbers, already on the device.

    The additional time of a training run with real images is the time for reading them.

    Args:
        n: apparent number of images.
        crop_size: side C of the network's input, in pixels.
    """

    def __init__(self, n: int, *, crop_size: int, device: torch.device) -> None:
        self._n, self._crop_size, self._device = n, crop_size, device
        self._batch = self._random(1)

    def __len__(self) -> int:
        return self._n

    def with_seed(self, seed: int) -> Self:  # noqa: ARG002 - as others need it
        """Return the object itself: there is no augmentation."""
        return self

    def prefetch(self, requests: Iterable[BatchRequest]) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing."""
        return nullcontext()

    def training_batch(self, sample_ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:  # noqa: ARG002
        """Return float32 (B, 3, C, C) with mean 0 and variance 1, in channels-last memory order."""
        return self.evaluation_batch(sample_ids)

    def evaluation_batch(self, sample_ids: NDArray[np.int64]) -> Tensor:
        """Return the same batch as `training_batch`."""
        if len(sample_ids) > len(self._batch):
            self._batch = self._random(len(sample_ids))
        return self._batch[: len(sample_ids)]

    def _random(self, n: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randn(n, 3, self._crop_size, self._crop_size, generator=generator)
        return pixels.to(self._device).to(memory_format=torch.channels_last)
