"""With folds, an image is compared with all others by one network."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reduction.neighbors import (
    exact_neighbors_by_network,
    expected_same_fold_share,
    nearest_neighbors,
    neighbors_by_network,
    same_fold_share,
)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(8, 40), n_folds=st.integers(2, 4), k=st.integers(1, 7))
def test_neighbors_are_those_by_the_network_of_the_fold(seed: int, n: int, n_folds: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    points, folds = rng.normal(size=(n_folds, n, 3)).astype(np.float32), (np.arange(n) % n_folds).astype(np.int32)
    actual = neighbors_by_network(lambda fold: points[fold], folds, k, seed=0)
    for row in range(n):
        distances = np.linalg.norm(points[folds[row]].astype(float) - points[folds[row], row], axis=1)
        distances[row] = np.inf
        np.testing.assert_array_equal(actual.rows[row], np.argsort(distances, kind="stable")[:k])
        np.testing.assert_allclose(actual.distances[row], np.sort(distances)[:k], rtol=1e-5)
    assert actual.search == {"method": "exact", "networks": n_folds}
    some = np.arange(0, n, 3)
    exact = exact_neighbors_by_network(lambda fold: points[fold], folds, some, k)
    np.testing.assert_array_equal(exact, actual.rows[some])


def test_neighbors_of_ones_own_fold_are_as_frequent_as_by_chance() -> None:
    rng = np.random.default_rng(0)
    n = 1500
    seen = rng.normal(size=(n, 4))
    # Each network distorts what both see in its own smooth way.
    points = np.stack([seen + 2 * np.sin(seen @ rng.normal(size=(4, 4))) for _ in range(2)]).astype(np.float32)
    folds = rng.integers(0, 2, size=n).astype(np.int32)
    mixed = nearest_neighbors(points[folds, np.arange(n)], 10, seed=0)
    actual = neighbors_by_network(lambda fold: points[fold], folds, 10, seed=0)
    rows, expected = np.arange(n), expected_same_fold_share(folds)
    assert same_fold_share(mixed.rows, rows, folds) > expected + 0.1
    assert same_fold_share(actual.rows, rows, folds) == pytest.approx(expected, abs=0.02)


def test_shares_by_hand() -> None:
    folds = np.array([0, 0, 1, 1, 1], dtype=np.int32)
    # One of four others is of the first two images' fold, and two of four are of the others'.
    assert expected_same_fold_share(folds) == pytest.approx((2 * 1 / 4 + 3 * 2 / 4) / 5)
    assert same_fold_share(np.array([[1, 2], [0, 1]]), np.array([0, 4]), folds) == 0.25
