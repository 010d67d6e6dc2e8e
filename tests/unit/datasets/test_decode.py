"""Any file to pixels, or a reason."""

import contextlib
import struct
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from pipeline.datasets import decode
from pipeline.datasets.decode import CropBox, UnreadableError, decode_image, decode_region
from tests.fixtures.golden import check_golden, refusals
from tests.fixtures.images import encode, huge_png, photo

_SIZE = 8


def _decode(data: bytes, size: int = _SIZE, max_megapixels: float = 1.0) -> NDArray[np.uint8]:
    return decode_image(data, size, max_megapixels=max_megapixels)


def _flat(mode: str, color: object) -> Image.Image:
    return Image.new(mode, (20, 10), color)  # type: ignore[arg-type]


def _palette_with_transparency() -> bytes:
    image = _flat("P", 0)
    image.putpalette([10, 20, 30, 40, 50, 60])
    return encode(image, transparency=0)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(encode(_flat("1", 1)), (255, 255, 255), id="bilevel"),
        pytest.param(encode(_flat("L", 77)), (77, 77, 77), id="grey"),
        pytest.param(encode(_flat("LA", (77, 255))), (77, 77, 77), id="grey, opaque"),
        pytest.param(encode(_flat("LA", (77, 0))), (255, 255, 255), id="grey, transparent"),
        pytest.param(encode(_flat("RGB", (1, 2, 3))), (1, 2, 3), id="RGB"),
        pytest.param(encode(_flat("RGBA", (0, 100, 200, 51))), (204, 224, 244), id="RGBA, a fifth opaque"),
        pytest.param(encode(_flat("P", 0).convert("RGB").quantize(4)), (0, 0, 0), id="palette"),
        pytest.param(_palette_with_transparency(), (255, 255, 255), id="palette, transparent"),
        pytest.param(encode(_flat("CMYK", (0, 255, 255, 0)), "TIFF"), (255, 0, 0), id="CMYK"),
        pytest.param(encode(Image.new("I;16", (20, 10), 0x80FF)), (128, 128, 128), id="16-bit PNG"),
        pytest.param(encode(Image.new("I;16", (20, 10), 0x80FF), "TIFF"), (128, 128, 128), id="16-bit TIFF"),
        pytest.param(b"P5 2 1 65535\n\x80\xff\x80\xff", (128, 128, 128), id="16-bit PGM"),
        pytest.param(encode(_flat("RGB", (9, 9, 9)), "WEBP", lossless=True), (9, 9, 9), id="WebP"),
        pytest.param(encode(_flat("RGB", (9, 9, 9)), "BMP"), (9, 9, 9), id="BMP"),
        pytest.param(
            encode(_flat("RGB", (255, 0, 0)), "GIF", save_all=True, append_images=[_flat("RGB", (0, 0, 255))]),
            (255, 0, 0),
            id="first frame of an animation",
        ),
    ],
)
def test_every_mode_becomes_rgb(data: bytes, expected: tuple[int, int, int]) -> None:
    pixels = _decode(data)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (_SIZE, _SIZE, 3)
    np.testing.assert_array_equal(pixels, np.broadcast_to(expected, pixels.shape))


def test_jpeg_of_cmyk() -> None:
    pixels = _decode(encode(_flat("CMYK", (0, 255, 255, 0)), "JPEG"))
    np.testing.assert_allclose(pixels, np.broadcast_to((255, 0, 0), pixels.shape), atol=3)


_UPRIGHT = np.arange(_SIZE * _SIZE * 3, dtype=np.uint8).reshape(_SIZE, _SIZE, 3)


@pytest.mark.parametrize(
    ("orientation", "stored"),
    [
        (1, _UPRIGHT),
        (2, _UPRIGHT[:, ::-1]),
        (3, _UPRIGHT[::-1, ::-1]),
        (4, _UPRIGHT[::-1]),
        (5, _UPRIGHT.transpose(1, 0, 2)),
        (6, np.rot90(_UPRIGHT)),
        (7, np.rot90(_UPRIGHT, 2).transpose(1, 0, 2)),
        (8, np.rot90(_UPRIGHT, -1)),
    ],
)
def test_exif_orientation(orientation: int, stored: NDArray[np.uint8]) -> None:
    """The EXIF standard defines the sides of row 0 and column 0, e.g. 6: right and top."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(Image.fromarray(np.ascontiguousarray(stored)), exif=exif)
    np.testing.assert_array_equal(_decode(data), _UPRIGHT)


def _exif(*tags: tuple[int, int, bytes]) -> bytes:
    """Return an EXIF block of tags with one value each: number, type, and bytes of the value."""
    entries = b"".join(struct.pack("<HHI", number, kind, 1) + value.ljust(4, b"\0") for number, kind, value in tags)
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4)


@pytest.mark.parametrize(
    "tag",
    [(0x0100, 2, b"x\0"), (0x011A, 2, b"x\0"), (0x0102, 8, b"\xff\xff"), (0x8298, 11, struct.pack("<f", 1.5))],
    ids=["width as text", "resolution as text", "negative bits", "copyright as a number"],
)
@pytest.mark.parametrize("file_format", ["PNG", "WEBP"])
def test_odd_tags_next_to_the_orientation_are_no_damage(tag: tuple[int, int, bytes], file_format: str) -> None:
    stored = Image.fromarray(np.ascontiguousarray(np.rot90(_UPRIGHT)))
    exif = _exif(*sorted([tag, (0x0112, 3, b"\x06\0")]))
    options = {"lossless": True} if file_format == "WEBP" else {}
    np.testing.assert_array_equal(_decode(encode(stored, file_format, exif=exif, **options)), _UPRIGHT)


def test_images_of_the_right_size_keep_their_pixels() -> None:
    np.testing.assert_array_equal(_decode(encode(Image.fromarray(_UPRIGHT))), _UPRIGHT)


def test_halving_averages_and_ignores_the_aspect_ratio() -> None:
    """Antialiased: a row of 16 stripes becomes their mean, not every second of them."""
    stripes = np.zeros((4, 64, 3), dtype=np.uint8)
    stripes[:, ::2] = 200
    pixels = _decode(encode(Image.fromarray(stripes)))
    assert pixels.shape == (_SIZE, _SIZE, 3)
    np.testing.assert_allclose(pixels, 100, atol=5)


@settings(deadline=None)
@given(width=st.integers(1, 70), height=st.integers(1, 70), size=st.integers(8, 40), grey=st.integers(0, 255))
def test_any_size_keeps_a_flat_color(width: int, height: int, size: int, grey: int) -> None:
    pixels = _decode(encode(Image.new("L", (width, height), grey), "BMP"), size)
    assert pixels.shape == (size, size, 3)
    assert (pixels == grey).all()


_UNREADABLE = {
    "empty": b"",
    "text": b"name,label\n1.png,cat\n",
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "float TIFF": encode(_flat("F", 0.5), "TIFF"),
    "32-bit TIFF": encode(_flat("I", 70_000), "TIFF"),
    "over the limit": huge_png(1001, 1000),
    "over Pillow's own limit": huge_png(2**31 - 1, 2**31 - 1),
}


def test_unreadable() -> None:
    cases = {name: partial(_decode, data) for name, data in _UNREADABLE.items()}
    check_golden("refused_images.txt", refusals(cases, error=UnreadableError))


@pytest.mark.parametrize("data", [photo(0)[:60], photo(0, file_format="JPEG")[:-90]], ids=["PNG", "JPEG"])
def test_truncated(data: bytes) -> None:
    with pytest.raises(UnreadableError):
        _decode(data)


def test_images_at_the_limit_are_decoded() -> None:
    assert _decode(encode(Image.new("L", (1000, 1000)), "PNG")).shape == (_SIZE, _SIZE, 3)


def test_reasons_do_not_change_from_run_to_run() -> None:
    """They become part of the metrics: no addresses, no names of temporary files."""
    reasons = set()
    for _ in range(2):
        with pytest.raises(UnreadableError) as raised:
            _decode(b"no image" + b"." * 100)
        reasons.add(str(raised.value))
    assert len(reasons) == 1
    assert "0x" not in reasons.pop()


_FILES = [photo(1, file_format=name) for name in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000")]


@settings(deadline=None)
@given(
    data=st.sampled_from(_FILES),
    cut=st.floats(0, 1),
    patches=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
)
@example(data=_FILES[0], cut=1.0, patches=[])
def test_damaged_files_give_pixels_or_a_reason(data: bytes, cut: float, patches: list[tuple[float, int]]) -> None:
    """Whatever bytes come: never another exception, never another shape."""
    damaged = bytearray(data)
    for where, value in patches:
        damaged[int(where * len(damaged))] = value
    with contextlib.suppress(UnreadableError):
        assert _decode(bytes(damaged[: round(cut * len(damaged))])).shape == (_SIZE, _SIZE, 3)


def _halves(size: tuple[int, int], *, orientation: int = 1, file_format: str = "JPEG") -> bytes:
    """An image that is red on the left of the upright picture and blue on the right."""
    width, height = size
    image = Image.new("RGB", size, (255, 0, 0))
    image.paste((0, 0, 255), (width // 2, 0, width, height))
    if orientation == 6:  # stored lying on its left side
        image = image.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"subsampling": 0} if file_format == "JPEG" else {}
    return encode(image, file_format, exif=exif, **options)


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "TIFF"])
def test_regions_are_those_of_the_upright_picture(orientation: int, draft: bool, file_format: str) -> None:
    seen: list[tuple[int, int]] = []

    def right_half(width: int, height: int) -> CropBox:
        seen.append((width, height))
        return width / 2 + 16, 0, width, height

    data = _halves((640, 320), orientation=orientation, file_format=file_format)
    pixels = decode_region(data, _SIZE, right_half, max_megapixels=1.0, draft=draft)
    assert seen == [(640, 320)]
    np.testing.assert_allclose(pixels, np.broadcast_to((0, 0, 255), pixels.shape), atol=3)


@pytest.mark.parametrize(
    ("side", "decoded"),
    [(8, (400, 301)), (15, (400, 301)), (16, (200, 151)), (63, (100, 76)), (64, (50, 38)), (300, (50, 38))],
)
def test_draft_keeps_at_least_the_pixels_that_are_needed(
    side: int, decoded: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, int]] = []
    to_rgb = decode._to_rgb

    def recording(image: Image.Image) -> Image.Image:
        sizes.append(image.size)
        return to_rgb(image)

    monkeypatch.setattr(decode, "_to_rgb", recording)
    data = photo(0, (400, 301), "JPEG")
    box = (50, 1, 50 + side, 301)
    reduced = decode_region(data, _SIZE, lambda width, height: box, max_megapixels=1.0, draft=True)
    whole = decode_region(data, _SIZE, lambda width, height: box, max_megapixels=1.0)
    assert sizes == [decoded, (400, 301)]
    assert np.abs(reduced.astype(int) - whole).mean() < 4
