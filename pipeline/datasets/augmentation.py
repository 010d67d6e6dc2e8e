"""Random crops and flips for training, and center crops for evaluation."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.decode import CropBox

# Separates these random numbers from others of the same seed.
_RESIZED_CROP_TAG = 3
_ATTEMPTS = 10
# Short side of the scaled image per side of the crop in evaluation; 256 and 224 are the usual sizes.
_EVALUATION_SCALE = 256 / 224

_CROP_FLIP_TAG = 2


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop:
    """A random rectangle of the image, and whether it is mirrored.

    Szegedy et al. 2015 (Going deeper with convolutions, section 6), with the distribution of torchvision's
    `RandomResizedCrop`: the area is uniform in `scale`, and the aspect ratio is log-uniform in `ratio`. After ten
    rectangles that do not fit, the crop is the largest center rectangle within `ratio`.

    Attributes:
        scale: smallest and largest share of the image's area, above 0, at most 1.
        ratio: smallest and largest width over height.
        flip: mirror half of the images.
        seed: the augmentation of an image depends only on (seed, epoch, sample id) and its size.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        assert 0 < self.scale[0] <= self.scale[1] <= 1, self.scale
        assert 0 < self.ratio[0] <= self.ratio[1], self.ratio

    def sample(self, sample_id: int, epoch: int) -> tuple[Callable[[int, int], CropBox], bool]:
        """Return a function from width and height to the rectangle, in integer pixels, and whether to mirror it."""
        rng = np.random.default_rng([self.seed, _RESIZED_CROP_TAG, epoch, sample_id])
        # A fixed number of samples in a fixed order: the mirror does not depend on the image's size.
        mirror, x, y, *shapes = rng.random(3 + 2 * _ATTEMPTS).tolist()
        return partial(self._box, x, y, shapes), self.flip and mirror < 0.5

    def _box(self, x: float, y: float, shapes: Sequence[float], width: int, height: int) -> CropBox:
        low, high = (math.log(ratio) for ratio in self.ratio)
        for area, aspect in zip(shapes[::2], shapes[1::2], strict=True):
            pixels = width * height * (self.scale[0] + area * (self.scale[1] - self.scale[0]))
            ratio = math.exp(low + aspect * (high - low))
            w, h = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
            if 0 < w <= width and 0 < h <= height:
                return _box_at(int(x * (width - w + 1)), int(y * (height - h + 1)), w, h)
        w = min(width, max(1, round(height * self.ratio[1])))
        h = min(height, max(1, round(width / self.ratio[0])))
        return _box_at((width - w) // 2, (height - h) // 2, w, h)


def center_box(width: int, height: int, *, crop_size: int) -> CropBox:
    """Return the region of a center crop after scaling the short side to crop_size * 256 / 224.

    It equals the region of torchvision's `Resize` and `CenterCrop`, including their rounding.

    Args:
        width, height: of the image, in pixels.
    """
    short = round(crop_size * _EVALUATION_SCALE)
    scaled_width, scaled_height = (int(short * side / min(width, height)) for side in (width, height))
    left, top = round((scaled_width - crop_size) / 2), round((scaled_height - crop_size) / 2)
    x, y = width / scaled_width, height / scaled_height
    return left * x, top * y, (left + crop_size) * x, (top + crop_size) * y


def _box_at(left: int, top: int, width: int, height: int) -> CropBox:
    return left, top, left + width, top + height


@dataclass(frozen=True, kw_only=True)
class AugmentationParams:
    """The random crops and flips of one epoch.

    Attributes:
        offsets: (N, 2) int64, top and left of the crop in pixels.
        flips: (N,) bool.
    """

    offsets: NDArray[np.int64]
    flips: NDArray[np.bool_]


def sample_augmentation(n: int, *, seed: int, epoch: int, n_offsets: int, flip: bool) -> AugmentationParams:
    """Sample crop offsets and flips for all `n` images of the data set.

    The augmentation of an image depends only on (seed, epoch, sample id): not on the batch size, the arm or the number
    of processes.

    Args:
        n_offsets: possible crop positions on each axis, >= 1.
        flip: whether an image is mirrored with probability one half.
    """
    rng = np.random.default_rng([seed, _CROP_FLIP_TAG, epoch])
    offsets = rng.integers(0, n_offsets, size=(n, 2))
    flips = rng.random(n) < 0.5
    return AugmentationParams(offsets=offsets, flips=flips if flip else np.zeros(n, dtype=np.bool_))
