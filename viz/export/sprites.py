"""Sprite sheets of thumbnails: one file per 1,024 images, which saves headers and unpacks fast."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features

from pipeline.errors import InputError

COLUMNS = 32
"""Thumbnails in a row of a sheet, and rows of a full sheet."""

PER_SHEET = COLUMNS**2

# Tried from best to worst: on CIFAR-10, lower quality loses less than a smaller size. Bytes per image and PSNR against
# the originals (1,024 images): WebP of 32 pixels and quality 40: 183, 29.7 dB. JPEG: 229, 28.4 dB.
# WebP of 24 pixels and quality 75: 174, 28.5 dB. The last format, WebP of 24 pixels and quality 40, is still
# recognizable: 121, 26.9 dB.
_SIDES, _QUALITIES = (64, 48, 40, 32, 24), (75, 60, 50, 40)
# Smaller thumbnails than the blocks of WebP would blend into each other.
_LOSSLESS_BELOW = 16
_LOSSLESS = 101
_SAMPLE = 256


@dataclass(frozen=True, order=True)
class ThumbnailFormat:
    """Format of thumbnails: `side` in pixels, and `quality` of WebP, 0 to 100, or `_LOSSLESS`. Better is greater."""

    side: int
    quality: int


def choose_thumbnail_format(images: NDArray[np.uint8], budget: int) -> ThumbnailFormat:
    """Return the best format that fits the budget, measured on a sample, or the smallest format if none fits.

    Args:
        images: (N, S, S, 3), N >= 1.
        budget: average bytes per image.

    Raises:
        InputError: Pillow cannot write WebP.
    """
    sample = images[np.linspace(0, len(images) - 1, min(_SAMPLE, len(images))).astype(np.int64)]
    formats = _formats(images.shape[1])
    for thumbnails in formats:
        if len(_encode(sample, thumbnails)) <= budget * len(sample):
            return thumbnails
    return formats[-1]


def sprite_sheets(images: NDArray[np.uint8], rows: NDArray[np.int64], thumbnails: ThumbnailFormat) -> Iterator[bytes]:
    """Yield WebP files of `COLUMNS` x `COLUMNS` thumbnails each, left to right and top down in the order of `rows`.

    Args:
        images: (N, S, S, 3), S at least the side of the thumbnails.
        rows: of the images.
        thumbnails: format.

    Raises:
        InputError: Pillow cannot write WebP.
    """
    for start in range(0, len(rows), PER_SHEET):
        chosen = rows[start : start + PER_SHEET]
        # Views: a copy of a sheet of large images would take 0.8 GB.
        yield _encode([images[row] for row in chosen], thumbnails)


def _formats(side: int) -> list[ThumbnailFormat]:
    if side < _LOSSLESS_BELOW:
        return [ThumbnailFormat(side, _LOSSLESS)]
    return sorted(
        {ThumbnailFormat(min(side, smaller), quality) for smaller, quality in product(_SIDES, _QUALITIES)}, reverse=True
    )


def _encode(images: Sequence[NDArray[np.uint8]] | NDArray[np.uint8], thumbnails: ThumbnailFormat) -> bytes:
    """Return one sheet of at most `PER_SHEET` images (S, S, 3)."""
    if not features.check("webp"):
        raise InputError("Pillow: built without WebP; install it from PyPI: pip install pillow")
    side, n_rows = thumbnails.side, -(-len(images) // COLUMNS)
    tiles = np.zeros((n_rows * COLUMNS, side, side, 3), dtype=np.uint8)
    for tile, image in zip(tiles, images, strict=False):
        tile[...] = image if len(image) == side else _downscale(image, side)
    sheet = tiles.reshape(n_rows, COLUMNS, side, side, 3).swapaxes(1, 2).reshape(n_rows * side, COLUMNS * side, 3)
    buffer = io.BytesIO()
    lossless = thumbnails.quality == _LOSSLESS
    Image.fromarray(sheet).save(buffer, format="WEBP", lossless=lossless, quality=min(thumbnails.quality, 100))
    return buffer.getvalue()


def _downscale(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(np.ascontiguousarray(image)).resize((side, side), Image.Resampling.LANCZOS))
