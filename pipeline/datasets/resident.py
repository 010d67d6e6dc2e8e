"""Small images as one uint8 tensor on the device, from which batches are indexed."""

import copy
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.datasets.augmentation import AugmentationParams, sample_augmentation
from pipeline.datasets.sources import BatchRequest

# Images copied at a time: a memory-mapped file is never in memory twice.
_COPY_ROWS = 4096


class Normalization:
    """Computes (pixel / 255 - mean) / std, as one multiplication and one addition on the device.

    Args:
        mean, std: per channel, in units of 0 to 1.
        width: of the images, in pixels.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, width: int, device: torch.device) -> None:
        scale = 1.0 / (255.0 * torch.tensor(std, dtype=torch.float64))
        shift = -torch.tensor(mean, dtype=torch.float64) / torch.tensor(std, dtype=torch.float64)
        # Repeated for a row of an image: an innermost axis of three channels leaves vector units idle.
        self._scale = scale.to(device, torch.float32).repeat(width)
        self._shift = shift.to(device, torch.float32).repeat(width)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Convert uint8 (B, H, W, 3) to float32 (B, 3, H, W) in channels-last memory order."""
        rows = pixels.flatten(2)
        if rows.is_cuda:
            rows = torch.addcmul(self._shift, rows, self._scale)
        else:
            # Several times faster on a CPU than one operation that also converts. Each step rounds, so the bits do
            # not depend on how threads and vector units divide the batch.
            rows = rows.to(torch.float32).mul_(self._scale).add_(self._shift)
        return rows.view(pixels.shape).permute(0, 3, 1, 2)


class ResidentImages:
    """Images on the device, cropped, flipped and normalized a batch at a time.

    Batches are float32 (B, 3, C, C) in channels-last memory order. The pixels are stored with channels innermost, so
    no copy is needed.

    Args:
        images: uint8 (N, H, W, 3); copied to `device`.
        mean, std: per channel, in units of 0 to 1.
        crop_size: side C of what the network sees.
        crop_padding: zero pixels around the image, for random crops.
        flip: mirror half of the training images.
        seed: of the augmentation.
    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        *,
        mean: Sequence[float],
        std: Sequence[float],
        crop_size: int,
        crop_padding: int = 0,
        flip: bool = False,
        seed: int = 0,
        device: torch.device,
    ) -> None:
        n, side, _, _ = images.shape
        padded = side + 2 * crop_padding
        assert crop_size <= padded, (crop_size, padded)
        self._pixels = torch.zeros((n, padded, padded, 3), dtype=torch.uint8, device=device)
        inner = slice(crop_padding, crop_padding + side)
        for start in range(0, n, _COPY_ROWS):
            rows = slice(start, start + _COPY_ROWS)
            self._pixels[rows, inner, inner] = torch.tensor(images[rows]).to(device)
        self._crop_size = crop_size
        self._n_offsets = padded - crop_size + 1
        self._flip, self._seed = flip, seed
        self._augmentations: dict[int, AugmentationParams] = {}
        self._normalize = Normalization(mean, std, width=crop_size, device=device)

    def __len__(self) -> int:
        return len(self._pixels)

    def with_seed(self, seed: int) -> Self:
        """Return the same pixels, not copied, with the augmentation of another seed."""
        other = copy.copy(self)
        other._seed, other._augmentations = seed, {}
        return other

    def prefetch(self, requests: Iterable[BatchRequest]) -> AbstractContextManager[None]:  # noqa: ARG002 - as others need it
        """Do nothing: all images are on the device."""
        return nullcontext()

    def training_batch(self, ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        """Return augmented images by sample ids (B,), each with the augmentation of its epoch (B,)."""
        offsets = np.empty((len(ids), 2), dtype=np.int64)
        flips = np.empty(len(ids), dtype=np.bool_)
        for epoch in np.unique(epochs):
            in_epoch = epochs == epoch
            params = self._augmentation_for(int(epoch))
            offsets[in_epoch], flips[in_epoch] = params.offsets[ids[in_epoch]], params.flips[ids[in_epoch]]
        return self._crop(ids, offsets, flips)

    def evaluation_batch(self, ids: NDArray[np.int64]) -> Tensor:
        """Return center crops by sample ids (B,)."""
        center = np.full((len(ids), 2), (self._n_offsets - 1) // 2, dtype=np.int64)
        return self._crop(ids, center, np.zeros(len(ids), dtype=np.bool_))

    def _crop(self, ids: NDArray[np.int64], offsets: NDArray[np.int64], flips: NDArray[np.bool_]) -> Tensor:
        device = self._pixels.device
        if self._n_offsets == 1 and not flips.any():
            return self._normalize(self._pixels[torch.from_numpy(ids).to(device)])
        side = np.arange(self._crop_size)
        rows = offsets[:, :1] + side
        columns = offsets[:, 1:] + np.where(flips[:, None], side[::-1], side)
        image, row, column = (
            torch.from_numpy(index).to(device, non_blocking=True)
            for index in (ids[:, None, None], rows[:, :, None], columns[:, None, :])
        )
        return self._normalize(self._pixels[image, row, column])

    def _augmentation_for(self, epoch: int) -> AugmentationParams:
        if epoch not in self._augmentations:
            self._augmentations = {old: params for old, params in self._augmentations.items() if old >= epoch - 1}
            self._augmentations[epoch] = sample_augmentation(
                len(self), seed=self._seed, epoch=epoch, n_offsets=self._n_offsets, flip=self._flip
            )
        return self._augmentations[epoch]
