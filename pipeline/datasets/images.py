"""Any image file to RGB pixels of one size, or the reason why not."""

import io
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

# Raster formats alone: Pillow would hand EPS to Ghostscript, and others are no photographs.
_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
IMAGE_SUFFIXES = frozenset(
    (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".jp2", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)


class UnreadableError(Exception):
    """A file that gives no image; the message says why in a few words, without the file's name."""


def decode_image(data: bytes, size: int, *, max_megapixels: float) -> NDArray[np.uint8]:
    """Decode an image file's bytes to uint8 (size, size, 3), RGB.

    The first frame of an animation; turned upright by its EXIF orientation; transparency over
    white; 16-bit greys by their upper byte. The whole image is scaled to the square, bilinear with
    antialiasing, whatever its aspect ratio.

    Raises:
        UnreadableError: empty, no image, damaged, or of more than `max_megapixels`, which is
            known before any pixel is decoded.
    """
    if not data:
        raise UnreadableError("empty file")
    try:
        with Image.open(io.BytesIO(data), formats=_available_formats()) as image:
            _check_size(image.size, max_megapixels)
            upright = ImageOps.exif_transpose(image)
            return resize(_to_rgb(upright), size)
    except UnreadableError:
        raise
    except UnidentifiedImageError:
        raise UnreadableError("not an image of a known format") from None
    except Image.DecompressionBombError:
        raise UnreadableError(f"more than {max_megapixels:g} megapixels") from None
    except Exception as error:  # noqa: BLE001 - on damaged bytes Pillow's decoders raise nearly anything
        raise UnreadableError(f"damaged ({error or type(error).__name__})") from None


def resize(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """Scale an RGB image to uint8 (size, size, 3)."""
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image, dtype=np.uint8)


@cache
def _available_formats() -> tuple[str, ...]:
    """Builds of Pillow differ in what they read, and `Image.open` raises KeyError for the rest."""
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
        # Dropping the alpha channel would bring up whatever colour lies under transparent pixels.
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _upper_byte(pixels: NDArray[np.integer]) -> NDArray[np.uint8]:
    if pixels.min() < 0 or pixels.max() > 0xFFFF:
        raise UnreadableError("32-bit pixels, whose white is not defined")
    return (pixels >> 8).astype(np.uint8)
