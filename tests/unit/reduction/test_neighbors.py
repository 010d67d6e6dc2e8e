"""Nearest others against the definition, and the inverted file against comparing all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reduction import neighbors
from pipeline.reduction.neighbors import NeighborSearch, nearest_neighbors, neighbor_recall


def _by_definition(points: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and distances of the nearest others, of equally near ones lower rows first."""
    distances = np.linalg.norm(points[:, None].astype(np.float64) - points[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    order = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(distances, order, axis=1)


def _points(seed: int, n: int, dimensions: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, dimensions)).astype(np.float32)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 60), dimensions=st.integers(1, 6), data=st.data())
def test_neighbors_by_definition(seed: int, n: int, dimensions: int, data: st.DataObject) -> None:
    points = _points(seed, n, dimensions)
    k = data.draw(st.integers(1, n - 1))
    actual = nearest_neighbors(points, k, seed=0)
    rows, distances = _by_definition(points, k)
    np.testing.assert_array_equal(actual.rows, rows)
    np.testing.assert_allclose(actual.distances, distances, rtol=1e-6)
    assert actual.rows.dtype == np.int32
    assert actual.distances.dtype == np.float32
    assert actual.search == {"method": "exact"}


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), copies=st.integers(1, 30), k=st.integers(1, 20))
def test_no_point_is_its_own_neighbor_among_duplicates(seed: int, copies: int, k: int) -> None:
    points = np.repeat(_points(seed, 21, 3), copies, axis=0)
    actual = nearest_neighbors(points, k, seed=0)
    assert (actual.rows != np.arange(len(points))[:, None]).all()
    for others in actual.rows:
        assert len(set(others.tolist())) == k
    assert (np.diff(actual.distances, axis=1) >= 0).all()
    assert (actual.distances[:, : copies - 1] == 0).all()


def test_a_far_mean_costs_no_neighbor() -> None:
    points = _points(0, 400, 8)
    near, far = nearest_neighbors(points, 5, seed=0), nearest_neighbors(points + np.float32(200), 5, seed=0)
    assert neighbor_recall(far.rows, near.rows) > 0.99
    np.testing.assert_allclose(far.distances, near.distances, rtol=1e-3)


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    points = _points(0, 300, 5)
    whole = nearest_neighbors(points, 7, seed=0)
    monkeypatch.setattr(neighbors, "_QUERIES", 41)
    parts = nearest_neighbors(points, 7, seed=0)
    np.testing.assert_array_equal(parts.rows, whole.rows)
    np.testing.assert_array_equal(parts.distances, whole.distances)


def _inverted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbors, "_MAX_EXACT_PAIRS", 0)


def test_the_inverted_file_finds_nearly_all(monkeypatch: pytest.MonkeyPatch) -> None:
    points = _points(0, 6000, 10)
    exact = nearest_neighbors(points, 25, seed=0)
    _inverted(monkeypatch)
    approximate = nearest_neighbors(points, 25, seed=0)
    assert approximate.search["method"] == "ivf"
    assert approximate.search["lists"] == round(4 * 6000**0.5)
    # Gaussian noise has no clusters, the hardest case; all of these distances are true ones.
    assert 0.97 < neighbor_recall(approximate.rows, exact.rows) < 1
    assert (approximate.distances >= exact.distances).all()
    assert (approximate.rows != np.arange(6000)[:, None]).all()


@pytest.mark.parametrize("seed", [3, 2**31, 2**32 - 1])
def test_the_inverted_file_repeats_itself_to_the_bit(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    _inverted(monkeypatch)
    first, second = (nearest_neighbors(_points(0, 4000, 6), 10, seed=seed) for _ in range(2))
    assert first.rows.tobytes() == second.rows.tobytes()
    assert first.distances.tobytes() == second.distances.tobytes()


def test_lists_that_hold_too_few_are_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """More neighbors than the lists that a query looks through have points."""
    _inverted(monkeypatch)
    points = _points(0, 500, 2)
    actual = nearest_neighbors(points, 499, seed=0)
    assert (np.sort(actual.rows, axis=1)[:, :5] >= 0).all()
    assert all(len(set(others.tolist())) == 499 for others in actual.rows)


def test_queries_need_not_be_among_the_points() -> None:
    points, queries = _points(0, 50, 4), _points(1, 9, 4)
    rows, distances = NeighborSearch(points, queries=len(queries), seed=0).query(queries, 50)
    expected = np.linalg.norm(queries[:, None].astype(np.float64) - points[None], axis=2)
    np.testing.assert_array_equal(rows, np.argsort(expected, axis=1))
    np.testing.assert_allclose(distances, np.sort(expected, axis=1), rtol=1e-6)
