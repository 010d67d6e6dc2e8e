"""What training and evaluation need of images, wherever they are."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Request = tuple[NDArray[np.int64], NDArray[np.int64] | None]
"""Sample ids and the epoch of each, both (B,); None for evaluation."""


class TrainingImages(Protocol):
    """Images by sample id, as float32 (B, 3, C, C) on the device; in memory, or read from files."""

    def __len__(self) -> int: ...

    def reseeded(self, seed: int) -> Self:
        """The same images with the augmentation of another seed."""
        ...

    def training_batch(self, ids: NDArray[np.int64], epochs: NDArray[np.int64]) -> Tensor:
        """Augmented, each with the draws of its epoch; a function of seed, epoch and id alone."""
        ...

    def evaluation_batch(self, ids: NDArray[np.int64]) -> Tensor:
        """Without augmentation."""
        ...

    def prefetch(self, requests: Iterable[Request]) -> AbstractContextManager[None]:
        """While active, prepare the announced batches ahead, in their order."""
        ...
