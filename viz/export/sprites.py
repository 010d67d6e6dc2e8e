"""All thumbnails in a few large pictures: one header for a thousand images, and quick to unpack."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features

from pipeline.errors import InputError

COLUMNS = 32
"""Thumbnails in a row of a sheet; it has as many rows."""

PER_SHEET = COLUMNS**2

# Tried from the best down. On CIFAR-10 (1,024 images) against the originals, WebP at 32 pixels and quality 40
# takes 183 bytes an image for 29.7 dB; JPEG needs 229 for 28.4 dB; at 24 pixels quality 75 takes 174 for 28.5 dB.
# So quality goes before size. The last, 24 pixels at 40, 121 bytes and 26.9 dB, still shows what an image is of.
_SIDES, _QUALITIES = (64, 48, 40, 32, 24), (75, 60, 50, 40)
# Below the side of WebP's blocks, thumbnails would run into one another.
_LOSSLESS_BELOW = 16
_LOSSLESS = 101
_SAMPLE = 256


@dataclass(frozen=True, order=True)
class ThumbnailFormat:
    """How thumbnails are kept: `side` in pixels, and WebP's `quality`, 0 to 100, or `_LOSSLESS`."""

    side: int
    quality: int


def choose_thumbnail_format(images: NDArray[np.uint8], budget: int) -> ThumbnailFormat:
    """The best look that fits, by a sample; where none does, the smallest that is still recognizable.

    Args:
        images: (N, S, S, 3), N >= 1.
        budget: bytes an image, on average.
    """
    sample = images[np.linspace(0, len(images) - 1, min(_SAMPLE, len(images))).astype(np.int64)]
    rungs = _rungs(images.shape[1])
    for rung in rungs:
        if len(_encode(sample, rung)) <= budget * len(sample):
            return rung
    return rungs[-1]


def sprite_sheets(images: NDArray[np.uint8], rows: NDArray[np.int64], rung: ThumbnailFormat) -> Iterator[bytes]:
    """WebP files of `COLUMNS` x `COLUMNS` thumbnails each, left to right and top down in the order of `rows`.

    Args:
        images: (N, S, S, 3), S at least the rung's side.

    Raises:
        InputError: Pillow here cannot write WebP.
    """
    if not features.check("webp"):
        raise InputError("Pillow here was built without WebP; install the one from PyPI: pip install pillow")
    for start in range(0, len(rows), PER_SHEET):
        chosen = rows[start : start + PER_SHEET]
        yield _encode(np.stack([images[row] for row in chosen]), rung)


def _rungs(side: int) -> list[ThumbnailFormat]:
    if side < _LOSSLESS_BELOW:
        return [ThumbnailFormat(side, _LOSSLESS)]
    return sorted(
        {ThumbnailFormat(min(side, at), quality) for at, quality in product(_SIDES, _QUALITIES)}, reverse=True
    )


def _encode(images: NDArray[np.uint8], rung: ThumbnailFormat) -> bytes:
    """One sheet of at most `PER_SHEET` images (n, S, S, 3)."""
    side, n_rows = rung.side, -(-len(images) // COLUMNS)
    tiles = np.zeros((n_rows * COLUMNS, side, side, 3), dtype=np.uint8)
    for tile, image in zip(tiles, images, strict=False):
        tile[...] = image if len(image) == side else _reduced(image, side)
    sheet = tiles.reshape(n_rows, COLUMNS, side, side, 3).swapaxes(1, 2).reshape(n_rows * side, COLUMNS * side, 3)
    buffer = io.BytesIO()
    lossless = rung.quality == _LOSSLESS
    Image.fromarray(sheet).save(buffer, format="WEBP", lossless=lossless, quality=min(rung.quality, 100))
    return buffer.getvalue()


def _reduced(image: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    return np.asarray(Image.fromarray(np.ascontiguousarray(image)).resize((side, side), Image.Resampling.LANCZOS))
