"""Stream large images from their files: batches are decoded ahead of their use.

Decoding runs in threads, not processes. Pillow reads and scales outside Python's global lock: on two cores, two threads
were at least as fast as two worker processes (2,200 against 1,800 images/s at 224x224, 990 against 950 at 500x500).
Python itself takes 0.08 ms per image, so the lock limits a rank to about 12,000 images/s. Threads need no start, no
pickling and no shared memory, and none can outlive its parent or die alone. They write each image directly into its row
of the batch.
"""

import copy
import math
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.artifacts.prepared import ImageFiles
from pipeline.datasets.augmentation import RandomResizedCrop, center_box
from pipeline.datasets.decode import UnreadableError, decode_region
from pipeline.datasets.resident import Normalization
from pipeline.datasets.sources import BatchRequest
from pipeline.errors import DataError

# Epoch of images to evaluate, which are center crops.
_EVALUATION = -1


class StreamingImages:
    """Images in files, cropped, scaled, flipped and normalized; with the methods of `ResidentImages`.

    Batches are float32 (B, 3, C, C) on the device in channels-last memory order. Their bits depend only on files,
    settings, sample ids and epochs, not on `workers`, prefetching, or the division of ids into batches. Prefetching
    decodes batches ahead:

        with images.prefetch((sample_ids, epochs) for sample_ids, epochs in batches_from(step)):
            ...  # training_batch with the same batches, or with consecutive parts of them, in that order

    For training, JPEGs are decoded at a reduced size if the crop still has enough pixels (`draft` of `decode_region`).
    For evaluation they are decoded at full size.

    Args:
        files: of the images, by sample id.
        mean, std: per channel, in units of 0 to 1.
        crop_size: side C of the network's input, in pixels.
        random_crop: crops the training images; has their seed.
        workers: decoding threads; 0 decodes in the caller's thread and nothing ahead.
        batches_ahead: requested batches in memory at a time as uint8, including the one in use.
    """

    def __init__(
        self,
        files: ImageFiles,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        crop_size: int,
        random_crop: RandomResizedCrop,
        workers: int,
        batches_ahead: int = 2,
        device: torch.device,
    ) -> None:
        assert workers >= 0, workers
        assert batches_ahead >= 1, batches_ahead
        self._files = files
        self._crop_size = crop_size
        self._random_crop = random_crop
        self._center = partial(center_box, crop_size=crop_size)
        # The threads end with this object.
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="decode") if workers else None
        self._batches_ahead = batches_ahead
        self._requests: Iterator[BatchRequest] = iter(())
        self._prefetched: deque[_DecodingBatch] = deque()
        self._device = device
        self._normalize = Normalization(mean, std, width=crop_size, device=device)

    def __len__(self) -> int:
        return len(self._files)

    def with_seed(self, seed: int) -> Self:
        """Return the same files and threads, with the crops of another seed."""
        other = copy.copy(self)
        other._random_crop = replace(self._random_crop, seed=seed)
        other._requests, other._prefetched = iter(()), deque()
        return other

    def training_batch(self, sample_ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        """Return augmented images by sample ids (B,), each with the augmentation of its epoch (B,).

        Raises:
            DataError: naming the file that is missing or has changed.
        """
        return self._normalize(self._pixels(sample_ids, epochs))

    def evaluation_batch(self, sample_ids: NDArray[np.int64]) -> Tensor:
        """Return center crops by sample ids (B,), of the images scaled to a short side of C * 256 / 224.

        Raises:
            DataError: naming the file that is missing or has changed.
        """
        return self._normalize(self._pixels(sample_ids, np.full(len(sample_ids), _EVALUATION)))

    @contextmanager
    def prefetch(self, requests: Iterable[BatchRequest]) -> Iterator[None]:
        """Decode the requested batches ahead, in order; `requests` may be endless and is read lazily.

        Images requested in another order are decoded on request. Contexts may be nested: an evaluation during training
        prefetches its batches in an inner context.
        """
        outer = self._requests, self._prefetched
        self._requests, self._prefetched = iter(requests), deque()
        with _pillow_warnings_ignored():
            try:
                self._fill_queue()
                yield
            finally:
                for batch in self._prefetched:
                    batch.cancel()
                self._requests, self._prefetched = outer

    def _pixels(self, sample_ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        """Return uint8 (B, C, C, 3) on the device."""
        parts: list[Tensor] = []
        start = 0
        while not parts or start < len(sample_ids):
            part = self._next_part(sample_ids[start:], epochs[start:])
            parts.append(part.to(self._device, non_blocking=True))
            start += len(part)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _next_part(self, sample_ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        """Return the first of these images that the oldest prefetched batch has, or else decode all of them now."""
        if self._prefetched:
            oldest = self._prefetched[0]
            n = oldest.n_matching(sample_ids, epochs)
            if n:
                part = oldest.take(n)
                if oldest.is_empty():
                    self._prefetched.popleft()
                    self._fill_queue()
                return part
        with _pillow_warnings_ignored():
            return self._start(sample_ids, epochs).take(len(sample_ids))

    def _fill_queue(self) -> None:
        """Start to decode requested batches until `batches_ahead` are in memory."""
        while self._pool and len(self._prefetched) < self._batches_ahead:
            request = next(self._requests, None)
            if request is None:
                return
            sample_ids, epochs = request
            if len(sample_ids):
                self._prefetched.append(
                    self._start(sample_ids, np.full(len(sample_ids), _EVALUATION) if epochs is None else epochs)
                )

    def _start(self, sample_ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> "_DecodingBatch":
        shape = (len(sample_ids), self._crop_size, self._crop_size, 3)
        # The copy to a GPU overlaps the computation only from pinned memory.
        pixels = torch.empty(shape, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        jobs: list[Future[None]] = []
        for sample_id, epoch, row in zip(sample_ids.tolist(), epochs.tolist(), pixels.numpy(), strict=True):
            if self._pool:
                jobs.append(self._pool.submit(self._decode, sample_id, epoch, row))
            else:
                self._decode(sample_id, epoch, row)
        return _DecodingBatch(sample_ids, epochs, pixels, jobs)

    def _decode(self, sample_id: int, epoch: int, out: NDArray[np.uint8]) -> None:
        """Write one image to `out` (C, C, 3)."""
        training = epoch != _EVALUATION
        region, mirror = self._random_crop.sample(sample_id, epoch) if training else (self._center, False)
        content = self._files.read(sample_id)
        try:
            # `prepare` has checked its size.
            pixels = decode_region(content, self._crop_size, region, max_megapixels=math.inf, draft=training)
        except UnreadableError as error:
            raise DataError(f"{self._files.path(sample_id)}: {error}; run `dvc repro --force prepare`") from None
        out[:] = pixels[:, ::-1] if mirror else pixels


class _DecodingBatch:
    """The pixels of one batch, which the threads write, and their pending jobs."""

    def __init__(
        self, sample_ids: NDArray[np.int64], epochs: NDArray[np.int64], pixels: Tensor, jobs: list[Future[None]]
    ) -> None:
        self._ids, self._epochs, self._pixels, self._jobs = sample_ids, epochs, pixels, jobs
        self._taken = 0

    def is_empty(self) -> bool:
        return self._taken == len(self._ids)

    def n_matching(self, sample_ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> int:
        """Return how many of these images come next in the batch; 0 if one differs."""
        stop = min(self._taken + len(sample_ids), len(self._ids))
        rows, n = slice(self._taken, stop), stop - self._taken
        same = np.array_equal(self._ids[rows], sample_ids[:n]) and np.array_equal(self._epochs[rows], epochs[:n])
        return n if same else 0

    def take(self, n: int) -> Tensor:
        """Wait for the next `n` images and return them; raises what a thread raised."""
        rows = slice(self._taken, self._taken + n)
        self._taken += n
        wait(self._jobs[rows])
        for job in self._jobs[rows]:
            job.result()
        return self._pixels[rows]

    def cancel(self) -> None:
        for job in self._jobs:
            job.cancel()
        wait(self._jobs)


@contextmanager
def _pillow_warnings_ignored() -> Iterator[None]:
    """Ignore Pillow's warnings about odd metadata of valid images.

    The caller enters before the threads work and leaves afterwards: the list of filters is not thread-safe.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield
