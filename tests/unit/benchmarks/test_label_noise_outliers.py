"""Images of a class that is left out, and damaged images."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.label_noise.outliers import NO_CLASS, blank, blurred, corrupt, open_set, wrong_crop
from pipeline.errors import InputError


def _images(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(n, 16, 16, 3), dtype=np.uint8)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), n_classes=st.integers(3, 6), rate=st.floats(0.01, 0.14))
def test_images_of_the_class_left_out_get_labels_of_the_others(seed: int, n_classes: int, rate: float) -> None:
    truth = np.random.default_rng(seed).permutation(np.repeat(np.arange(n_classes), 50))
    found = open_set(truth, n_classes, rate, np.random.default_rng(seed))
    outside = truth[found.rows] == found.left_out
    assert abs(outside.mean() - rate) <= 1 / len(found.rows)
    assert (np.diff(found.rows) > 0).all()
    assert set(np.flatnonzero(truth != found.left_out)) <= set(found.rows.tolist())
    np.testing.assert_array_equal(found.truth == NO_CLASS, outside)
    np.testing.assert_array_equal(found.labels[~outside], found.truth[~outside])
    # The classes keep their order.
    names = [label for label in range(n_classes) if label != found.left_out]
    np.testing.assert_array_equal(np.array(names)[found.truth[~outside]], truth[found.rows][~outside])
    assert set(found.labels.tolist()) == set(range(n_classes - 1))


def test_too_many_outsiders_and_two_classes_are_refused() -> None:
    for n_classes, rate in ((3, 0.4), (2, 0.1)):
        with pytest.raises(InputError):
            open_set(np.repeat(np.arange(n_classes), 30), n_classes, rate, np.random.default_rng(0))


def test_the_requested_images_are_damaged_a_third_in_each_way() -> None:
    images = _images(100)
    rows, damaged = corrupt(images, 0.3, np.random.default_rng(0))
    assert len(set(rows.tolist())) == len(rows) == len(damaged) == 30
    np.testing.assert_array_equal(damaged[0], blurred(images[rows[0]]))
    np.testing.assert_array_equal(damaged[1], blank(images[rows[1]]))
    assert (np.ptp(damaged[1::3], axis=(1, 2)) == 0).all()
    np.testing.assert_array_equal(images, _images(100))


def test_damage_removes_what_the_image_shows() -> None:
    image = _images(1)[0]
    assert blurred(image).std() < 0.3 * image.std()
    np.testing.assert_allclose(blank(image)[0, 0], image.mean(axis=(0, 1)), atol=0.5)
    marked = np.zeros((16, 16, 3), dtype=np.uint8)
    marked[4:12, 4:12] = 255
    for seed in range(4):
        assert not wrong_crop(marked, np.random.default_rng(seed)).any(), "the middle is not in a corner"
