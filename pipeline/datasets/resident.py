"""Small images as one uint8 tensor on the device, from which batches are indexed."""

import copy
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.datasets.augmentation import sample_augmentation
from pipeline.datasets.sources import BatchRequest, upload

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

    The crops and flips of all images are copied to the device once an epoch. A batch copies only its sample ids.

    Batches are float32 (B, 3, C, C) in channels-last memory order. The pixels are stored with channels innermost, so
    no copy is needed.

    Args:
        images: uint8 (N, H, W, 3); copied to `device`.
        mean, std: per channel, in units of 0 to 1.
        crop_size: side C of the network's input, in pixels.
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
        self._n_offsets = padded - crop_size + 1
        self._flip, self._seed = flip, seed
        # By epoch: (N, 3) int64 of top, left, and whether to mirror.
        self._crops: dict[int, Tensor] = {}
        self._side = torch.arange(crop_size, device=device)
        self._normalize = Normalization(mean, std, width=crop_size, device=device)

    def __len__(self) -> int:
        return len(self._pixels)

    def with_seed(self, seed: int) -> Self:
        """Return the same pixels, not copied, with the augmentation of another seed."""
        other = copy.copy(self)
        other._seed, other._crops = seed, {}
        return other

    def prefetch(self, requests: Iterable[BatchRequest]) -> AbstractContextManager[None]:  # noqa: ARG002 - as others need it
        """Do nothing: all images are on the device."""
        return nullcontext()

    def training_batch(self, sample_ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        """Return augmented images by sample ids (B,), each with the augmentation of its epoch (B,)."""
        present, which = np.unique(epochs, return_inverse=True)
        tables = [self._crops_of(epoch) for epoch in present.tolist()]
        rows, entries = upload(np.stack([sample_ids, which * len(self) + sample_ids]), self._pixels.device)
        return self._cut(rows, (tables[0] if len(tables) == 1 else torch.cat(tables))[entries])

    def evaluation_batch(self, sample_ids: NDArray[np.int64]) -> Tensor:
        """Return center crops by sample ids (B,)."""
        center = (self._n_offsets - 1) // 2
        crops = np.tile(np.array([center, center, 0], dtype=np.int64), (len(sample_ids), 1))
        return self._cut(upload(sample_ids, self._pixels.device), upload(crops, self._pixels.device))

    def _cut(self, sample_ids: Tensor, crops: Tensor) -> Tensor:
        """Return crops of images by sample ids (B,); `crops` (B, 3) are top, left, and whether to mirror."""
        if self._n_offsets == 1 and not self._flip:
            return self._normalize(self._pixels[sample_ids])
        top, left, mirror = crops[:, :, None].unbind(1)
        columns = left + torch.where(mirror > 0, self._side.flip(0), self._side)
        return self._normalize(
            self._pixels[sample_ids[:, None, None], (top + self._side)[:, :, None], columns[:, None, :]]
        )

    def _crops_of(self, epoch: int) -> Tensor:
        if epoch not in self._crops:
            self._crops = {old: crops for old, crops in self._crops.items() if old >= epoch - 1}
            params = sample_augmentation(
                len(self), seed=self._seed, epoch=epoch, n_offsets=self._n_offsets, flip=self._flip
            )
            table = np.column_stack([params.offsets, params.flips]).astype(np.int64)
            self._crops[epoch] = upload(table, self._pixels.device)
        return self._crops[epoch]
