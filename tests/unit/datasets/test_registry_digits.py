"""scikit-learn's digits as a data set."""

import hashlib

import numpy as np
import pytest
from sklearn.datasets import load_digits

from pipeline.datasets.image_set import DecodedImage
from pipeline.datasets.registry import open_digits
from tests.fixtures.images import dataset_options


def test_splits_cover_all_images_by_class() -> None:
    images = open_digits(dataset_options(None, test_size=0.2))
    target = load_digits().target
    assert images.class_names == tuple("0123456789")
    samples = {sample.path: sample.label for sample in (*images.train, *images.test)}
    assert samples == {f"digits/{i:04d}": label for i, label in enumerate(target)}
    assert len(samples) == len(images.train) + len(images.test) == 1797
    share = np.bincount(images.labels("test")) / np.bincount(target)
    np.testing.assert_allclose(share, 0.2, atol=0.005)


@pytest.mark.parametrize("size", [8, 16])
def test_pixels(size: int) -> None:
    images = open_digits(dataset_options(None, test_size=0.2, image_size=size))
    decoded = {image.path: image for image in images.decode()}
    assert len(decoded) == 1797
    original = load_digits().images[5]
    image = decoded["digits/0005"]
    assert isinstance(image, DecodedImage)
    assert image.pixels.shape == (size, size, 3)
    assert (image.pixels == image.pixels[:, :, :1]).all()
    assert image.sha256 == hashlib.sha256(original.astype(np.uint8).tobytes()).hexdigest()
    if size == 8:
        np.testing.assert_array_equal(image.pixels[:, :, 0], np.rint(original / 16 * 255))
    else:
        blocks = image.pixels[:, :, 0].reshape(8, 2, 8, 2).mean(axis=(1, 3))
        assert np.corrcoef(blocks.ravel(), original.ravel())[0, 1] > 0.97


def test_another_seed_splits_otherwise() -> None:
    tests = [open_digits(dataset_options(None, test_size=0.2, seed=seed)).test for seed in (0, 0, 1)]
    assert tests[0] == tests[1]
    assert tests[0] != tests[2]
