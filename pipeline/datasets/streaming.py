"""Large images stay in their files; batches are decoded from them ahead of their use.

Decoding runs in threads, not processes. Pillow reads and scales outside Python's global lock: on
two cores two threads were at least as fast as two worker processes (2,200 against 1,800 images/s
at 224x224, 990 against 950 at 500x500). Python's own share of an image is 0.08 ms, so the lock
would bind at some 12,000 images/s per rank. In return there is nothing to start or to pickle, no
shared memory to run out of, no worker that could die alone or outlive its parent, and threads
write each image straight into its row of the batch.
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

# Epoch value that means the center crop.
_EVALUATION = -1


class StreamingImages:
    """Images in files, cropped, scaled, flipped and normalized; with the methods of `ResidentImages`.

    Batches are float32 (B, 3, C, C) on the device in channels-last memory order. Their bits depend
    on files, settings, sample ids and epochs alone: not on `workers`, on what was announced, or on
    how ids are cut into batches. Announcing makes batches come sooner:

        with images.prefetch((ids, epochs) for ids, epochs in batches_from(step)):
            ...  # the same batches through training_batch, whole or in smaller parts, in that order

    JPEGs are decoded at a reduced size for training where the crop has pixels to spare
    (`decode_region`'s `draft`), and in full for evaluation.

    Args:
        files: of the images, by sample id.
        mean, std: per channel, in units of 0 to 1.
        crop_size: side C of what the network sees.
        random_crop: of the training images; holds their seed.
        workers: decoding threads; 0 decodes in the caller's thread, nothing ahead.
        batches_ahead: requested batches in memory at a time, the one in use included, as uint8.
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
        # Its threads end with this object.
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="decode") if workers else None
        self._batches_ahead = batches_ahead
        self._requests: Iterator[BatchRequest] = iter(())
        self._announced: deque[_DecodingBatch] = deque()
        self._device = device
        self._normalize = Normalization(mean, std, width=crop_size, device=device)

    def __len__(self) -> int:
        return len(self._files)

    def with_seed(self, seed: int) -> Self:
        """The same files and threads, with the crops of another seed."""
        other = copy.copy(self)
        other._random_crop = replace(self._random_crop, seed=seed)
        other._requests, other._announced = iter(()), deque()
        return other

    def training_batch(self, ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        """Augmented images of the given sample ids, each with the augmentation of its epoch; both (B,).

        Raises:
            InputError: a file is missing or has changed; names it.
        """
        return self._normalize(self._pixels(ids, epochs))

    def evaluation_batch(self, ids: NDArray[np.int64]) -> Tensor:
        """Center crops of the given sample ids (B,), of the image scaled to a short side of C * 256 / 224.

        Raises:
            InputError: a file is missing or has changed; names it.
        """
        return self._normalize(self._pixels(ids, np.full(len(ids), _EVALUATION)))

    @contextmanager
    def prefetch(self, requests: Iterable[BatchRequest]) -> Iterator[None]:
        """Decode the requested batches ahead, in order; `requests` may be endless and is read lazily.

        Images that are asked for out of this order are decoded when asked for. May be nested: an
        evaluation in the middle of training announces its own batches.
        """
        outer = self._requests, self._announced
        self._requests, self._announced = iter(requests), deque()
        with _silent_pillow():
            try:
                self._announce()
                yield
            finally:
                for decoding in self._announced:
                    decoding.cancel()
                self._requests, self._announced = outer

    def _pixels(self, ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        """uint8 (B, C, C, 3) on the device."""
        parts: list[Tensor] = []
        start = 0
        while not parts or start < len(ids):
            part = self._next_part(ids[start:], epochs[start:])
            parts.append(part.to(self._device, non_blocking=True))
            start += len(part)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _next_part(self, ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        """The first of these images: those that the oldest announced batch holds, or all, decoded now."""
        if self._announced:
            oldest = self._announced[0]
            n = oldest.n_matching(ids, epochs)
            if n:
                part = oldest.take(n)
                if oldest.is_empty():
                    self._announced.popleft()
                    self._announce()
                return part
        with _silent_pillow():
            return self._start(ids, epochs).take(len(ids))

    def _announce(self) -> None:
        while self._pool and len(self._announced) < self._batches_ahead:
            request = next(self._requests, None)
            if request is None:
                return
            ids, epochs = request
            if len(ids):
                self._announced.append(self._start(ids, np.full(len(ids), _EVALUATION) if epochs is None else epochs))

    def _start(self, ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> "_DecodingBatch":
        shape = (len(ids), self._crop_size, self._crop_size, 3)
        # The copy to a GPU overlaps the computation only from pinned memory.
        pixels = torch.empty(shape, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        jobs: list[Future[None]] = []
        for sample_id, epoch, row in zip(ids.tolist(), epochs.tolist(), pixels.numpy(), strict=True):
            if self._pool:
                jobs.append(self._pool.submit(self._decode, sample_id, epoch, row))
            else:
                self._decode(sample_id, epoch, row)
        return _DecodingBatch(ids, epochs, pixels, jobs)

    def _decode(self, sample_id: int, epoch: int, out: NDArray[np.uint8]) -> None:
        """Write one image to `out` (C, C, 3)."""
        training = epoch != _EVALUATION
        region, mirror = self._random_crop.sample(sample_id, epoch) if training else (self._center, False)
        content = self._files.read(sample_id)
        try:
            # Its size was checked when it was prepared.
            pixels = decode_region(content, self._crop_size, region, max_megapixels=math.inf, draft=training)
        except UnreadableError as error:
            raise DataError(f"{self._files.path(sample_id)}: {error}; run `dvc repro --force prepare`") from None
        out[:] = pixels[:, ::-1] if mirror else pixels


class _DecodingBatch:
    """One batch: its pixels, which the threads write, and what they have still to do."""

    def __init__(
        self, ids: NDArray[np.int64], epochs: NDArray[np.int64], pixels: Tensor, jobs: list[Future[None]]
    ) -> None:
        self._ids, self._epochs, self._pixels, self._jobs = ids, epochs, pixels, jobs
        self._taken = 0

    def is_empty(self) -> bool:
        return self._taken == len(self._ids)

    def n_matching(self, ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> int:
        """How many of these images come next; 0 if any is another one."""
        stop = min(self._taken + len(ids), len(self._ids))
        rows, n = slice(self._taken, stop), stop - self._taken
        same = np.array_equal(self._ids[rows], ids[:n]) and np.array_equal(self._epochs[rows], epochs[:n])
        return n if same else 0

    def take(self, n: int) -> Tensor:
        """The next images, as soon as they are there. Raises what a thread raised."""
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
def _silent_pillow() -> Iterator[None]:
    """Sound images with odd metadata make Pillow warn.

    Entered before the threads work and left after: the list of filters is not theirs to change.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield
