import io
import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, features

from pipeline.errors import InputError
from tests.fixtures.slow import quick_first
from viz.export.sprites import COLUMNS, PER_SHEET, ThumbnailFormat, choose_thumbnail_format, sprite_sheets


def _scenes(n: int, side: int) -> NDArray[np.uint8]:
    """(n, side, side, 3): smooth, as photographs are, each different."""
    small = np.random.default_rng(0).integers(0, 256, (n, 4, 4, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(image).resize((side, side))) for image in small])


def _tile(sheets: list[bytes], position: int, side: int) -> NDArray[np.uint8]:
    sheet = np.asarray(Image.open(io.BytesIO(sheets[position // PER_SHEET])))
    top, left = divmod(position % PER_SHEET, COLUMNS)
    return sheet[top * side : (top + 1) * side, left * side : (left + 1) * side]


def test_every_thumbnail_is_where_the_page_looks_for_it() -> None:
    images = np.broadcast_to(np.arange(1100)[:, None, None, None] % 251, (1100, 32, 32, 3)).astype(np.uint8)
    rows = np.random.default_rng(0).permutation(1100)
    thumbnails = choose_thumbnail_format(images, 190)
    sheets = list(sprite_sheets(images, rows, thumbnails))
    assert len(sheets) == 2
    for position in (0, 31, 32, 1023, 1024, 1099):
        mean = _tile(sheets, position, thumbnails.side)[8:-8, 8:-8].mean()
        assert mean == pytest.approx(rows[position] % 251, abs=6)


@pytest.mark.parametrize("side", quick_first(1, [64, 32, 96]))
def test_thumbnails_fit_the_budget_and_look_like_their_image(side: int) -> None:
    images = _scenes(300, side)
    thumbnails = choose_thumbnail_format(images, 190)
    sheets = list(sprite_sheets(images, np.arange(300), thumbnails))
    assert sum(map(len, sheets)) <= 1.1 * 190 * 300
    for row in (0, 40, 299):
        expected = np.asarray(Image.fromarray(images[row]).resize((thumbnails.side, thumbnails.side)), dtype=float)
        error = ((_tile(sheets, row, thumbnails.side) - expected) ** 2).mean()
        assert 10 * np.log10(255**2 / error) > 24


@pytest.mark.slow
def test_more_bytes_never_look_worse() -> None:
    images = _scenes(300, 64)
    formats = [choose_thumbnail_format(images, budget) for budget in (1, 60, 120, 190, 10_000)]
    assert formats == sorted(formats)
    assert (formats[0].side, formats[-1].side) == (24, 64)


def test_tiny_images_keep_every_pixel() -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 3), dtype=np.uint8)
    sheets = list(sprite_sheets(images, np.arange(50), choose_thumbnail_format(images, 1)))
    np.testing.assert_array_equal(_tile(sheets, 49, 8), images[49])


def test_a_pillow_without_webp_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "check", lambda feature: False)
    images = _scenes(2, 32)
    with pytest.raises(InputError, match="WebP"):
        choose_thumbnail_format(images, 190)
    with pytest.raises(InputError, match="WebP"):
        list(sprite_sheets(images, np.arange(2), ThumbnailFormat(32, 40)))


@pytest.mark.slow
def test_a_sheet_of_large_images_is_not_copied() -> None:
    images = np.broadcast_to(np.zeros(3, dtype=np.uint8), (PER_SHEET, 256, 256, 3))
    tracemalloc.start()
    (sheet,) = sprite_sheets(images, np.arange(PER_SHEET), ThumbnailFormat(24, 40))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert Image.open(io.BytesIO(sheet)).size == (24 * COLUMNS, 24 * COLUMNS)
    assert peak < images.nbytes / 10
