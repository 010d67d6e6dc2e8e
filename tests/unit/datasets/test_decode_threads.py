"""Many files on several threads."""

import hashlib
import struct
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from pipeline.datasets.decode import UnreadableError, dark_16_bit_note, decode_files, decode_image
from pipeline.datasets.image_set import DecodedImage, UnreadableImage
from tests.fixtures.images import encode, photo


def test_every_file_in_order_readable_or_not() -> None:
    files: list[tuple[str, bytes | UnreadableError]] = [(f"{i}.png", photo(i)) for i in range(100)]
    files[3] = ("3.png", b"text")
    files[50] = ("50.png", UnreadableError("too many bytes"))
    decoded = list(decode_files(files, 8, max_megapixels=1.0))
    assert [image.path for image in decoded] == [name for name, _ in files]
    assert decoded[3] == UnreadableImage(path="3.png", reason="not an image of a known format")
    assert decoded[50] == UnreadableImage(path="50.png", reason="too many bytes")
    image = decoded[7]
    assert isinstance(image, DecodedImage)
    np.testing.assert_array_equal(image.pixels, decode_image(photo(7), 8, max_megapixels=1.0))
    assert image.sha256 == hashlib.sha256(photo(7)).hexdigest()


def test_decoded_16_bit_images_state_their_brightest_pixel() -> None:
    pixels = np.zeros((9, 12), dtype=np.uint16)
    pixels[3, 4] = 1023
    gray, color = encode(Image.fromarray(pixels)), photo(1)
    files = [("1.png", gray), ("2.png", color), ("3.pgm", b"P5 1 1 65535\n\x80\xff")]
    decoded = [image for image in decode_files(files, 8, max_megapixels=1.0) if isinstance(image, DecodedImage)]
    assert [image.brightest_16_bit for image in decoded] == [1023, None, 0x80FF]


@pytest.mark.parametrize(
    ("brightest", "stated"), [(0, "0"), (255, "255"), (4095, "4,095"), (4096, ""), (65_535, ""), (None, "")]
)
def test_16_bit_images_that_appear_black_are_noted(brightest: int | None, stated: str) -> None:
    note = dark_16_bit_note(brightest)
    assert f" {stated} of 65,535" in note if stated else note == ""


def test_files_are_read_as_they_are_needed() -> None:
    """Memory: a data set's files are never all read before the first is handed on."""
    read = 0

    def files() -> Iterator[tuple[str, bytes]]:
        nonlocal read
        for i in range(1000):
            read += 1
            yield f"{i}.png", photo(i)

    images = decode_files(files(), 8, max_megapixels=1.0)
    for consumed in range(1, 20):
        next(images)
        assert read <= consumed + 16
    images.close()  # type: ignore[attr-defined]


def test_pillow_warnings_are_silent_and_the_callers_filters_stay() -> None:
    """A damaged EXIF block makes Pillow warn; the picture is sound."""
    exif = b"Exif\0\0MM\0*" + struct.pack(">I", 8) + struct.pack(">H", 9)
    data = encode(Image.new("RGB", (8, 8), (10, 20, 30)), "PNG")
    at = data.index(b"IDAT") - 4
    damaged = data[:at] + _png_chunk(b"eXIf", exif.removeprefix(b"Exif\0\0")) + data[at:]
    before = list(warnings.filters)
    (image,) = decode_files([("a.png", damaged)], 8, max_megapixels=1.0)
    assert isinstance(image, DecodedImage)
    assert (image.pixels == (10, 20, 30)).all()
    assert list(warnings.filters) == before


def test_drafts_of_large_photographs_are_nearly_the_same() -> None:
    """Decoded at an eighth, a JPEG differs from its exact reduction by rounding, and a small one not at all."""
    noise = np.random.default_rng(0).integers(0, 60, (400, 400, 3))
    ramp = np.linspace(0, 190, 400).astype(np.int64)[:, None, None]
    large = encode(Image.fromarray((ramp + noise).astype(np.uint8)), "JPEG", quality=95)
    small = encode(Image.new("RGB", (8, 8), (10, 20, 30)), "JPEG")
    files = [("large.jpg", large), ("small.jpg", small)]
    exact, drafts = ([*decode_files(files, 8, max_megapixels=1.0, draft=draft)] for draft in (False, True))
    equal = []
    for one, other in zip(exact, drafts, strict=True):
        assert isinstance(one, DecodedImage)
        assert isinstance(other, DecodedImage)
        np.testing.assert_allclose(other.pixels.astype(int), one.pixels.astype(int), atol=8)
        assert one.sha256 == other.sha256
        equal.append(np.array_equal(one.pixels, other.pixels))
    assert equal == [False, True]


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    import zlib

    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
