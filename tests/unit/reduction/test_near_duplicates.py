"""Near duplicates by construction: copies are found, and images that only share a class are not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reduction import near_duplicates as module
from pipeline.reduction import neighbors
from pipeline.reduction.near_duplicates import chance_neighbors, intrinsic_dimension, near_duplicates


def _features(seed: int, n: int, *, dimension: int = 6, n_classes: int = 4) -> np.ndarray:
    """Features of classes: directions far apart, with a spread of few dimensions around each."""
    rng = np.random.default_rng(seed)
    centers, axes = rng.normal(size=(n_classes, 40)), rng.normal(size=(dimension, 40))
    spread = rng.normal(size=(n, dimension)) @ axes / 40
    return (centers[rng.integers(n_classes, size=n)] + spread).astype(np.float32)


def _copies(features: np.ndarray, rows: np.ndarray, seed: int, *, noise: float = 1e-3) -> np.ndarray:
    changes = np.random.default_rng(seed).normal(scale=noise, size=(len(rows), 40))
    copies: np.ndarray = features[rows] + changes.astype(np.float32)
    return copies


def _images(seed: int, n: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=(n, 16, 16, 3), dtype=np.uint8)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_copies_are_found_and_different_images_are_not(seed: int) -> None:
    features = _features(seed, 400)
    copied = np.array([3, 50, 399])
    found = near_duplicates(np.concatenate([features, _copies(features, copied, seed)]))
    planted = {(3, 400), (50, 401), (399, 402)}
    assert planted <= set(map(tuple, found.pairs.tolist()))
    # One pair of different images is expected at most; nine or more have a probability below 1e-6.
    assert len(found.pairs) <= len(planted) + 8
    assert (found.chance_pairs <= 1).all()
    assert (np.diff(found.chance_pairs) >= 0).all()
    assert np.isnan(found.pixel_correlation).all()


def test_chance_pairs_are_as_many_as_the_bound_says() -> None:
    """Directions uniform on a sphere are all different; of their pairs as many pass as expected, or half of them.

    A pair that both of its ends find counts once.
    """
    rng = np.random.default_rng(0)
    spheres = rng.normal(size=(20, 500, 6)).astype(np.float32)
    counts = [len(near_duplicates(features, max_chance_pairs=40.0).pairs) for features in spheres]
    assert 8 < np.mean(counts) < 40


def test_the_scale_of_features_does_not_matter() -> None:
    features = _features(0, 300)
    features = np.concatenate([features, _copies(features, np.array([7]), 0)])
    scales = np.random.default_rng(0).uniform(1e-3, 1e3, size=(len(features), 1)).astype(np.float32)
    np.testing.assert_array_equal(near_duplicates(features * scales).pairs, near_duplicates(features).pairs)


def test_pixels_tell_copies_from_images_with_equal_features() -> None:
    features, images = _features(0, 300), _images(0, 300)
    together = _copies(features, np.array([5, 6, 7]), 0)
    dimmed, mirrored = images[5] // 2, images[6][:, ::-1]
    pictures = np.concatenate([images, np.stack([dimmed, mirrored, _images(9, 1)[0]])])
    found = near_duplicates(np.concatenate([features, together]), pictures)
    assert set(map(tuple, found.pairs.tolist())) == {(5, 300), (6, 301)}
    assert (found.pixel_correlation > 0.95).all()
    assert found.n_candidates >= 3


def test_test_images_are_rows_after_the_training_images(monkeypatch: pytest.MonkeyPatch) -> None:
    features, images = _features(0, 300), _images(0, 300)
    monkeypatch.setattr(module, "_MAX_BYTES", 40 * 4 * 24 * 7)  # several blocks
    found = near_duplicates(
        features, images, test_features=_copies(features, np.array([9, 9]), 0), test_images=images[[9, 9]]
    )
    assert set(map(tuple, found.pairs.tolist())) == {(9, 300), (9, 301), (300, 301)}
    np.testing.assert_allclose(found.similarity, 1, atol=1e-3)


@pytest.mark.parametrize("copies", [1, 5, 11])
def test_many_copies_of_one_image_do_not_count_as_density(copies: int) -> None:
    features = _features(0, 400)
    found = near_duplicates(np.concatenate([features, _copies(features, np.full(copies, 4), 0)]))
    assert len({tuple(pair) for pair in found.pairs.tolist() if {*pair} <= {4, *range(400, 400 + copies)}}) == (
        copies * (copies + 1) // 2
    )


def test_equal_features_are_found_even_if_all_are() -> None:
    features = np.repeat(_features(0, 1), 30, axis=0)
    found = near_duplicates(features)
    assert found.dimension == 0
    assert set(np.unique(found.pairs)) == set(range(30))
    np.testing.assert_allclose(found.similarity, 1)


def test_features_of_zeros_and_few_images() -> None:
    features = _features(0, 3)
    features[1] = 0
    assert near_duplicates(features, max_chance_pairs=1e-9).pairs.shape == (0, 2)
    assert near_duplicates(features[[0, 2, 0]]).pairs.tolist() == [[0, 2]]


def test_flat_images_equal_only_flat_images() -> None:
    features, images = _features(0, 200), _images(0, 200)
    images[3], images[4] = 200, 201
    together = np.concatenate([features, _copies(features, np.array([3, 3]), 0)])
    found = near_duplicates(together, np.concatenate([images, images[[4, 5]]]))
    assert found.pairs.tolist() == [[3, 200]]


@pytest.mark.parametrize("dimension", [2, 5, 10])
def test_intrinsic_dimension_of_uniform_points(dimension: int) -> None:
    """Neighbors in a ball around each of 2,000 centers, by their definition; copies do not change the estimate."""
    rng = np.random.default_rng(dimension)
    distances = rng.uniform(size=(2000, 24)) ** (1 / dimension)
    assert intrinsic_dimension(distances) == pytest.approx(dimension, rel=0.05)
    distances[:, :8] = 0
    assert intrinsic_dimension(distances) > 0


def test_chance_is_that_of_the_denser_end() -> None:
    distances = np.array([[1.0, 2.0], [1.0, 4.0], [2.0, 4.0]])
    neighbors = np.array([[1, 2], [0, 2], [0, 1]])
    expected = np.array([[0.25, 1.0], [0.25, 1.0], [1.0, 1.0]])
    np.testing.assert_allclose(chance_neighbors(distances, neighbors, 2.0), expected)


def test_each_pass_over_the_images_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbors, "_QUERIES", 7)
    # Blocks of ten images, each with the 40 features of its 24 neighbors.
    monkeypatch.setattr(module, "_MAX_BYTES", 10 * 4 * 24 * 40)
    reported: list[int] = []
    near_duplicates(_features(0, 30), report=reported.append)
    assert reported == [7, 7, 7, 7, 2, 10, 10, 10]
    assert sum(reported) == module.PASSES * 30
