"""Changed copies of images."""

import numpy as np
import pytest

from benchmarks.planted_duplicates import CHANGES, cropped, mirrored, plant, shifted


def _smooth(n: int) -> np.ndarray:
    """Images without sharp edges, as photographs: waves of low frequency."""
    rng = np.random.default_rng(0)
    x = np.linspace(0, 2 * np.pi, 32)
    waves = [
        np.sin(rng.uniform(0.3, 0.6, 3) * x[:, None, None] + rng.uniform(0, 6, 3) + x[None, :, None] / 2)
        for _ in range(n)
    ]
    return np.stack([(127 + 100 * wave).astype(np.uint8) for wave in waves])


@pytest.mark.parametrize("kind", CHANGES)
def test_a_copy_differs_from_its_image_and_shows_the_same(kind: str) -> None:
    for seed, image in enumerate(_smooth(5)):
        copy = CHANGES[kind](image, np.random.default_rng(seed))
        assert copy.shape == image.shape
        assert copy.dtype == np.uint8
        assert (copy != image).any()
        shown = copy[:, ::-1] if kind == "mirror" else copy
        assert np.corrcoef(shown.ravel(), image.ravel())[0, 1] > 0.85


def test_a_shift_is_by_one_or_two_pixels_along_both_axes() -> None:
    image = np.zeros((32, 32, 3), dtype=np.uint8)
    image[16, 16] = 255
    moves = set()
    for seed in range(40):
        row, column, _ = np.argwhere(shifted(image, np.random.default_rng(seed)))[0]
        moves |= {int(row) - 16, int(column) - 16}
    assert moves == {-2, -1, 1, 2}


def test_mirror_and_crop_by_hand() -> None:
    image = np.arange(32 * 32 * 3, dtype=np.int64).reshape(32, 32, 3).astype(np.uint8)
    np.testing.assert_array_equal(mirrored(image, np.random.default_rng(0))[:, 0], image[:, -1])
    flat = np.full((32, 32, 3), 7, dtype=np.uint8)
    np.testing.assert_array_equal(cropped(flat, np.random.default_rng(0)), flat)


def test_each_image_is_copied_once_at_most_and_each_kind_as_often() -> None:
    images = _smooth(30)
    planted = plant(images, 4, np.random.default_rng(0))
    assert len(set(planted.sources.tolist())) == len(planted.images) == 20
    assert [planted.kinds.count(kind) for kind in CHANGES] == [4] * 5
    row = planted.kinds.index("mirror")
    np.testing.assert_array_equal(planted.images[row], images[planted.sources[row]][:, ::-1])
