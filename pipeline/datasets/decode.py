"""Decode image files to RGB arrays of one size, on all cores in bounded memory."""

import hashlib
import io
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from pipeline.datasets.image_set import DecodedImage, UnreadableImage
from pipeline.errors import lacks_resources

# Left, top, right and bottom edges, in pixels of the upright image; may be fractional.
CropBox = tuple[float, float, float, float]

# Raster formats only: Pillow would pass EPS to Ghostscript, and other formats do not hold photographs.
_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
IMAGE_SUFFIXES = frozenset((
    ".avif", ".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".jp2", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
))  # fmt: skip

# What turns an image upright, by its EXIF orientation.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# 12-bit values have the upper bytes 0 to 15: such images appear black.
_DARK_16_BIT = 4096

# Limits the memory: each thread may have a decoded image of `max_megapixels`.
_MAX_THREADS = 8


class UnreadableError(Exception):
    """A file that cannot be decoded; the message gives the reason in a few words, without the file's name."""


def decode_image(data: bytes, size: int, *, max_megapixels: float, draft: bool = False) -> NDArray[np.uint8]:
    """Decode an image file's bytes to uint8 (size, size, 3), RGB.

    An animation gives its first frame. The image is turned upright by its EXIF orientation. Transparent pixels are
    composited over white, and 16-bit grays are represented by their upper byte. The complete image is scaled to the
    square, bilinear with antialiasing, for any aspect ratio.

    Args:
        draft: as in `decode_region`.

    Raises:
        UnreadableError: the data is empty, not an image, damaged, or of more than `max_megapixels`, which is checked
            before any pixel is decoded.
    """
    return decode_region(data, size, full_image, max_megapixels=max_megapixels, draft=draft)


def decode_region(
    data: bytes,
    size: int,
    region: Callable[[int, int], CropBox],
    *,
    max_megapixels: float,
    draft: bool = False,
    on_16_bit: Callable[[int], None] | None = None,
) -> NDArray[np.uint8]:
    """Decode one region of an image, as `decode_image` does.

    Args:
        region: from width and height of the upright image to the region that becomes the square.
        draft: decode a JPEG at 1/2, 1/4 or 1/8 of its size, the smallest at which the region still has `size` pixels
            on both axes. It is several times faster for photographs of cameras, and gives nearly the same pixels.
        on_16_bit: receives the value of the brightest pixel, 0 to 65,535, if the image has 16-bit grays.

    Raises:
        UnreadableError: as `decode_image`.
    """
    if not data:
        raise UnreadableError("empty file")
    try:
        with Image.open(io.BytesIO(data), formats=_available_formats()) as image:
            return scaled_region(image, size, region, max_megapixels=max_megapixels, draft=draft, on_16_bit=on_16_bit)
    except UnreadableError:
        raise
    except UnidentifiedImageError:
        raise UnreadableError("not an image of a known format") from None
    except Image.DecompressionBombError:
        raise UnreadableError(f"more than {max_megapixels:g} megapixels") from None
    except Exception as error:
        # On damaged bytes Pillow's decoders raise nearly anything. An image without memory for it is not damaged.
        if lacks_resources(error):
            raise
        raise UnreadableError(f"damaged ({error or type(error).__name__})") from None


def scaled_region(
    image: Image.Image,
    size: int,
    region: Callable[[int, int], CropBox],
    *,
    max_megapixels: float,
    draft: bool = False,
    on_16_bit: Callable[[int], None] | None = None,
) -> NDArray[np.uint8]:
    """Scale one region of an opened image, as `decode_region` does; arguments as there.

    Raises:
        UnreadableError: the image is too large, or its pixels have no defined white.
        Exception: any of Pillow's, while it decodes a damaged file.
    """
    _check_size(image.size, max_megapixels)
    if image.format == "TIFF":
        image.load()  # which turns it upright; before that, versions of Pillow state either size
    width, height = _upright_size(image)
    left, top, right, bottom = region(width, height)
    if draft:
        _reduce(image, min(right - left, bottom - top) / size)
    image = _upright(image)
    upright = _to_rgb(image)
    if on_16_bit and image.mode.startswith("I"):
        on_16_bit(int(np.asarray(image).max()))
    x, y = upright.width / width, upright.height / height
    box = (left * x, top * y, right * x, bottom * y)
    return np.asarray(upright.resize((size, size), Image.Resampling.BILINEAR, box=box), dtype=np.uint8)


def resize(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """Scale an RGB image to uint8 (size, size, 3)."""
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image, dtype=np.uint8)


def full_image(width: int, height: int) -> CropBox:
    """Return the region of the whole image."""
    return 0, 0, width, height


def _upright_size(image: Image.Image) -> tuple[int, int]:
    """Return width and height after `_upright`: orientations 5 to 8 swap them."""
    width, height = image.size
    return (height, width) if image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8) else (width, height)


def _upright(image: Image.Image) -> Image.Image:
    """Return the image turned by its EXIF orientation.

    `ImageOps.exif_transpose` also writes all other tags again, which fails if one of them is odd.
    """
    image.load()  # a TIFF has no orientation any more
    turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if turn is None else image.transpose(turn)


def _reduce(image: Image.Image, factor: float) -> None:
    """Set a JPEG to be decoded at the smallest of 1, 1/2, 1/4 and 1/8 that is not below 1/`factor`."""
    width, height = image.size
    scale = max(s for s in (8, 4, 2, 1) if s == 1 or s <= factor)
    image.draft(None, (width // scale, height // scale))


@cache
def _available_formats() -> tuple[str, ...]:
    """Return the formats that this build of Pillow reads; `Image.open` raises KeyError for others."""
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _check_size(size: tuple[int, int], max_megapixels: float) -> None:
    width, height = size
    if width * height > max_megapixels * 1e6:
        raise UnreadableError(f"{width}x{height} pixels, more than {max_megapixels:g} megapixels")


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow's own conversion clips: all but the darkest 1/256 of a 16-bit image would become white.
        return Image.fromarray(_upper_byte(np.asarray(image))).convert("RGB")
    if image.mode == "F":
        raise UnreadableError("floating-point pixels, whose white is not defined")
    if image.has_transparency_data:
        # Dropping the alpha channel would show the color under transparent pixels.
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _upper_byte(pixels: NDArray[np.integer]) -> NDArray[np.uint8]:
    if pixels.min() < 0 or pixels.max() > 0xFFFF:
        raise UnreadableError("32-bit pixels, whose white is not defined")
    return (pixels >> 8).astype(np.uint8)


def dark_16_bit_note(brightest: int | None) -> str:
    """Return a line for the log if all 16-bit grays are values of 12 bits or fewer; empty otherwise.

    Args:
        brightest: value of the brightest pixel of all 16-bit images, 0 to 65,535; None without such images.
    """
    if brightest is None or brightest >= _DARK_16_BIT:
        return ""
    return f"16-bit images: the brightest pixel is {brightest:,} of 65,535, so that they appear black; rescale them"


def brightest_of(first: int | None, second: int | None) -> int | None:
    """Return the larger of two values; None stands for none."""
    return max((value for value in (first, second) if value is not None), default=None)


def decode_files(
    files: Iterable[tuple[str, bytes | UnreadableError]],
    image_size: int,
    *,
    max_megapixels: float,
    draft: bool = False,
) -> Iterator[DecodedImage | UnreadableImage]:
    """Decode (path, content) pairs in threads, and yield the images in the order of the pairs.

    Pillow decodes outside Python's global lock. At most twice as many files as threads are in memory at a time.

    Args:
        files: path and content of each file; an `UnreadableError` instead of the content becomes the reason.
        image_size: side of the decoded images in pixels.
        draft: as in `decode_region`.
    """

    def decode(path: str, content: bytes | UnreadableError) -> DecodedImage | UnreadableImage:
        try:
            if isinstance(content, UnreadableError):
                raise content
            brightest: list[int] = []
            pixels = decode_region(
                content, image_size, full_image, max_megapixels=max_megapixels, draft=draft, on_16_bit=brightest.append
            )
        except UnreadableError as error:
            return UnreadableImage(path=path, reason=str(error))
        return DecodedImage(
            path=path,
            pixels=pixels,
            sha256=hashlib.sha256(content).hexdigest(),
            brightest_16_bit=max(brightest, default=None),
        )

    threads = min(len(os.sched_getaffinity(0)), _MAX_THREADS)
    waiting: deque[Future[DecodedImage | UnreadableImage]] = deque()
    # Set here for all threads: the list of warning filters is not thread-safe.
    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        warnings.filterwarnings("ignore", module=r"PIL\.")
        for path, content in files:
            waiting.append(pool.submit(decode, path, content))
            if len(waiting) >= 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
