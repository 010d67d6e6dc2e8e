"""Radii that nobody has to guess."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from pipeline.scoring.density import core_distances, release_radii_by_class
from pipeline.scoring.eps_search import expected_average_precision, k_distances, knee, search_planted
from tests.fixtures.slow import quick_first


def _blobs(seed: int, spacing: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, size=800)
    return np.array([[0, 0], [0, 1], [1, 0], [1, 1]])[labels] * spacing + rng.normal(size=(800, 2)), labels


def test_the_knee_is_where_a_bent_line_bends() -> None:
    curve = np.concatenate([np.linspace(0, 1, 90), np.linspace(2, 20, 10)])
    assert knee(curve) == 1
    assert knee(np.full(5, 3.0)) == 3
    assert knee(np.array([0.0, 0, 0, 1, np.inf])) == 1


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), unit=st.floats(0.01, 100))
def test_the_knee_has_the_unit_of_the_curve(seed: int, unit: float) -> None:
    curve = np.sort(np.random.default_rng(seed).standard_gamma(2, size=200))
    assert knee(curve * unit) == pytest.approx(knee(curve) * unit)


def test_distances_are_those_of_each_class() -> None:
    points, labels = _blobs(0, 5)
    expected = np.sort(np.concatenate([core_distances(points[labels == label], 4) for label in range(4)]))
    np.testing.assert_array_equal(k_distances(points, labels, 4), expected)


def test_planted_images_are_found_only_where_classes_lie_apart() -> None:
    apart, mixed = (search_planted(*_blobs(0, spacing), 5, fraction=0.05) for spacing in (12, 0))
    assert apart is not None
    assert mixed is not None
    assert apart.f1 > 0.9
    assert apart.average_precision > 0.9
    assert mixed.average_precision < 3 * 0.05


def test_the_tuned_radius_drops_little_of_what_belongs_where_it_is() -> None:
    points, labels = _blobs(1, 12)
    actual = search_planted(points, labels, 5, fraction=0.05)
    assert actual is not None
    noise = release_radii_by_class(points, labels, min_samples=5) > actual.eps
    assert noise.mean() < 0.05
    assert actual == search_planted(points, labels, 5, fraction=0.05)


def test_no_radius_without_separation() -> None:
    labels = np.arange(40) % 2
    assert search_planted(np.zeros((40, 2)), labels, 5, fraction=0.05) is None
    assert search_planted(np.random.default_rng(0).normal(size=(40, 2)), labels, 30, fraction=0.05) is None


def test_a_larger_assumed_noise_gives_a_smaller_radius() -> None:
    points, labels = _blobs(2, 4)
    found = [search_planted(points, labels, 5, fraction=fraction) for fraction in (0.02, 0.1, 0.3)]
    radii = [search.eps for search in found if search is not None]
    assert radii[0] > radii[1] > radii[2]


@pytest.mark.parametrize(("n_relevant", "n"), quick_first(1, [(3, 40), (1, 2), (1, 12), (10, 200)]))
def test_chance_is_the_mean_over_random_orders(n_relevant: int, n: int) -> None:
    rng, truth = np.random.default_rng(0), np.arange(n) < n_relevant
    scores = rng.random((2000, n))
    ranked = truth[np.argsort(-scores)]
    precision = np.cumsum(ranked, axis=1) / np.arange(1, n + 1)
    found = (precision * ranked).sum(axis=1) / n_relevant
    assert found[0] == pytest.approx(average_precision_score(truth, scores[0]))
    error = np.std(found) / len(found) ** 0.5
    assert expected_average_precision(n_relevant, n) == pytest.approx(np.mean(found), abs=4 * error)
