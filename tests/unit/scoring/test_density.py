"""Release radii against scikit-learn's DBSCAN, and classes kept apart."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.cluster import DBSCAN

from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.density import DBSCAN_SCORER, cluster, reconcile_radii, release_radii, release_radii_by_class

# Small whole coordinates make ties, duplicates and equal distances common, and all squares exact.
_GRIDS = st.integers(1, 40).flatmap(lambda n: arrays(np.float64, (n, 2), elements=st.integers(-6, 6).map(float)))
_CLOUDS = st.builds(
    lambda seed, n: np.random.default_rng(seed).standard_t(2, size=(n, 2)),
    st.integers(0, 2**32 - 1),
    st.integers(1, 80),
)


def _noise(points: np.ndarray, eps: float, min_samples: int) -> np.ndarray:
    # Another search than that of the code under test.
    labels = np.asarray(DBSCAN(eps=eps, min_samples=min_samples, algorithm="ball_tree").fit(points).labels_)
    return np.asarray(labels == -1)


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(points=st.one_of(_GRIDS, _CLOUDS), min_samples=st.integers(1, 8))
def test_a_point_is_noise_exactly_below_its_release_radius(points: np.ndarray, min_samples: int) -> None:
    radii = release_radii(points, min_samples)
    finite = radii[np.isfinite(radii)]
    steps = np.unique(np.concatenate([finite, [finite.max(initial=1) * 2]]))
    # Between any two steps of the curve, and just on either side of each.
    for eps in np.concatenate([steps * (1 - 1e-6), steps * (1 + 1e-6), (steps[1:] + steps[:-1]) / 2]):
        if eps > 0:
            np.testing.assert_array_equal(_noise(points, eps, min_samples), radii > eps, err_msg=f"eps {eps}")


@settings(deadline=None, max_examples=50)
@given(points=st.one_of(_GRIDS, _CLOUDS), min_samples=st.integers(1, 8))
def test_the_nearest_candidates_attain_the_minimum_over_all_points(points: np.ndarray, min_samples: int) -> None:
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    padded = np.pad(np.sort(distances, axis=1), ((0, 0), (0, min_samples)), constant_values=np.inf)
    core = padded[:, min_samples - 1]
    np.testing.assert_allclose(
        release_radii(points, min_samples), np.maximum(distances, core).min(axis=1), rtol=1e-12, atol=1e-300
    )


def test_by_hand() -> None:
    # On a line: a trio, a point 3 beyond it, and a distant pair. min_samples 3.
    points = np.array([[0, 0], [1, 0], [2, 0], [5, 0], [20, 0], [21, 0]], dtype=float)
    # The middle of the trio is core from 1 on and reaches its two neighbors; the fourth is core at
    # 4 but reached from the third (core at 2) at 3; the pair is core at 16 and 15.
    np.testing.assert_array_equal(release_radii(points, 3), [1, 1, 1, 3, 15, 15])
    np.testing.assert_array_equal(cluster(points, 1.5, 3), [0, 0, 0, -1, -1, -1])


def test_a_class_smaller_than_min_samples_is_never_released() -> None:
    assert np.isinf(release_radii(np.zeros((2, 2)), 3)).all()
    assert (release_radii(np.zeros((3, 2)), 3) == 0).all()


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_classes_do_not_see_each_other(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, points = rng.integers(0, 3, size=60), rng.normal(size=(60, 2))
    radii = release_radii_by_class(points, labels, min_samples=4)
    assert DBSCAN_SCORER.clusters is not None
    evidence = ScorerInputs(labels=labels, embeddings=points[None])
    clusters = DBSCAN_SCORER.clusters(evidence, np.full(60, 0.5), space="embedding", min_samples=4)
    for label in np.unique(labels):
        rows = labels == label
        np.testing.assert_array_equal(radii[rows], release_radii(points[rows], 4))
        np.testing.assert_array_equal(clusters[rows], cluster(points[rows], 0.5, 4))


def test_rounding_is_settled_as_dbscan_decided() -> None:
    radii, noise = np.array([1.0, 1 + 1e-12, 2.0, 0.5]), np.array([True, False, True, False])
    reconciled = reconcile_radii(radii, np.ones(4), noise)
    np.testing.assert_array_equal(reconciled > 1.0, noise)
    np.testing.assert_allclose(reconciled, radii, rtol=1e-8)
    with pytest.raises(AssertionError):
        reconcile_radii(radii, np.full(4, 1.5), noise)
