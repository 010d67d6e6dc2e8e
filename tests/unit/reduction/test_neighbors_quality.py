"""Neighborhoods counted by hand and by definition."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reduction.neighbors import exact_neighbors, knn_label_accuracy, neighbor_recall, quality_sample


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(3, 40), dimensions=st.integers(1, 5), data=st.data())
def test_neighbors_by_definition(seed: int, n: int, dimensions: int, data: st.DataObject) -> None:
    points = np.random.default_rng(seed).normal(size=(n, dimensions)).astype(np.float32)
    k = data.draw(st.integers(1, n - 1))
    actual = exact_neighbors(points, np.arange(n), k)
    for row, others in enumerate(actual):
        distances = np.linalg.norm(points.astype(float) - points[row], axis=1)
        distances[row] = np.inf
        assert row not in others
        np.testing.assert_allclose(distances[others], np.sort(distances)[:k], rtol=1e-5, atol=1e-6)


def test_duplicates_do_not_list_the_point_itself() -> None:
    actual = exact_neighbors(np.zeros((5, 2), dtype=np.float32), np.arange(5), 2)
    assert not (actual == np.arange(5)[:, None]).any()


def test_recall_counts_shared_members() -> None:
    assert neighbor_recall(np.array([[1, 2], [3, 4]]), np.array([[2, 1], [4, 5]])) == 0.75


def test_a_random_map_keeps_chance_and_a_copy_keeps_all() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(500, 10)).astype(np.float32)
    rows = quality_sample(len(points))
    before = exact_neighbors(points, rows, 20)
    chance = neighbor_recall(exact_neighbors(rng.normal(size=(500, 2)).astype(np.float32), rows, 20), before)
    assert neighbor_recall(before, before) == 1
    assert 0.02 < chance < 0.06  # 20 of 499


def test_votes() -> None:
    labels = np.array([0, 1, 1, 0, 2])
    neighbors = np.array([[1, 2, 3], [2, 0, 3]])
    # Row 0 is outvoted, 1 to 2; row 3, of class 0, gets votes 1, 0, 0.
    assert knn_label_accuracy(neighbors, np.array([0, 3]), labels) == 0.5
    # Row 1, of class 1, is voted 1; row 4, of class 2, is voted 1; row 0, of class 0, is voted 0.
    assert knn_label_accuracy(np.array([[2], [1], [3]]), np.array([1, 4, 0]), labels) == 2 / 3


def test_the_sample_is_fixed_and_without_repeats() -> None:
    rows = quality_sample(50_000)
    assert len(np.unique(rows)) == 2000
    np.testing.assert_array_equal(rows, quality_sample(50_000))
    np.testing.assert_array_equal(quality_sample(7), np.arange(7))
