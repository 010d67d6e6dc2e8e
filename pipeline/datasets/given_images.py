"""Images that a caller gives: paths, PIL images or arrays, of any size, as squares of one size."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pipeline.datasets.decode import CropBox, UnreadableError, decode_region, scaled_region
from pipeline.errors import InputError

GivenImage = str | Path | Image.Image | NDArray[np.uint8]
GivenImages = GivenImage | Sequence[GivenImage]
"""uint8 (N, H, W, 3) or (H, W, 3), RGB; a path or a PIL image; or a sequence of paths, PIL images or (H, W, 3)."""

_MAX_MEGAPIXELS = 178.0  # Pillow's own limit
_WANTED = "give paths, PIL images or uint8 (N, H, W, 3)"


def square_batches(
    images: GivenImages, size: int, region: Callable[[int, int], CropBox], *, batch_size: int
) -> Iterator[NDArray[np.uint8]]:
    """Yield uint8 (B, size, size, 3), at most `batch_size` images at a time in memory.

    An image that already is the square, uint8 (size, size, 3), keeps its pixels.

    Args:
        region: from width and height of an image to the region that becomes the square.

    Raises:
        InputError: naming the file, or `images` and the position of the image.
    """
    given = _as_sequence(images)
    for start in range(0, len(given), batch_size):
        rows = range(start, min(start + batch_size, len(given)))
        yield np.stack([_square(given[row], row, size, region) for row in rows])


def _as_sequence(images: GivenImages) -> Sequence[GivenImage] | NDArray[np.uint8]:
    if isinstance(images, str | Path | Image.Image):
        return [images]
    if isinstance(images, np.ndarray):
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[-1] != 3:
            raise InputError(f"images: {images.dtype} of shape {images.shape}; {_WANTED}")
        return images if images.ndim == 4 else images[np.newaxis]
    if not isinstance(images, Sequence):
        raise InputError(f"images: {type(images).__name__}; {_WANTED}")
    return images


def _square(image: GivenImage, row: int, size: int, region: Callable[[int, int], CropBox]) -> NDArray[np.uint8]:
    where = str(image) if isinstance(image, str | Path) else f"images: number {row}"
    try:
        if isinstance(image, str | Path):
            return decode_region(_content(Path(image)), size, region, max_megapixels=_MAX_MEGAPIXELS)
        if isinstance(image, np.ndarray):
            image = _from_array(image, row)
        if not isinstance(image, Image.Image):
            raise InputError(f"images: number {row} is a {type(image).__name__}; {_WANTED}")
        return scaled_region(image, size, region, max_megapixels=_MAX_MEGAPIXELS)
    except UnreadableError as error:
        raise InputError(f"{where}: {error}; leave it out or give another image") from None
    except (OSError, SyntaxError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        # A PIL image reads its file when its pixels are needed.
        raise InputError(f"{where}: damaged ({error}); leave it out or give another image") from None


def _content(path: Path) -> bytes:
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give paths of images, e.g. sorted(Path({str(path)!r}).rglob('*.jpg'))")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from None


def _from_array(pixels: NDArray[np.uint8], row: int) -> Image.Image:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise InputError(f"images: number {row} is {pixels.dtype} of shape {pixels.shape}; {_WANTED}")
    return Image.fromarray(np.ascontiguousarray(pixels))
