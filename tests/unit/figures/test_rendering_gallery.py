import io

import numpy as np
from PIL import Image

from pipeline.figures.rendering import image_grid, png, thumbnail


def test_small_images_keep_every_pixel() -> None:
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    media_type, file = thumbnail(image)
    assert media_type == "image/png"
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(file))), image)


def test_large_images_are_reduced() -> None:
    image = np.full((512, 512, 3), (200, 30, 90), dtype=np.uint8)
    media_type, file = thumbnail(image)
    small = np.asarray(Image.open(io.BytesIO(file)))
    assert media_type == "image/jpeg"
    assert small.shape == (96, 96, 3)
    assert abs(small.astype(int) - (200, 30, 90)).max() < 6
    assert len(file) < 3000


def test_the_grid_shows_each_image_under_its_own_caption() -> None:
    images = [np.full((8, 8, 3), index * 20, dtype=np.uint8) for index in range(12)]
    figure = image_grid(images, [f"$class {index}$" for index in range(12)])
    shown = [(axes.get_title(), np.max(axes.images[0].get_array())) for axes in figure.axes if axes.images]  # type: ignore[arg-type]
    assert shown == [(f"$class {index}$", index * 20) for index in range(12)]
    assert png(figure)


def test_long_captions_are_cut_line_by_line() -> None:
    figure = image_grid([np.zeros((8, 8, 3), dtype=np.uint8)], ["a" * 50 + "\nshort"])
    first, second = figure.axes[0].get_title().splitlines()
    assert first.endswith("…")
    assert len(first) <= 16
    assert second == "short"


def test_an_empty_grid_can_be_drawn() -> None:
    assert png(image_grid([], []))
