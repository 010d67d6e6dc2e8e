"""Principal axes against a full decomposition in double precision."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA

from pipeline.reduction.pca import fit_pca
from pipeline.typing import row_blocks


def _features(seed: int, n: int, dimensions: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, dimensions)) * np.linspace(4, 1, dimensions)).astype(np.float32)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(3, 60), dimensions=st.integers(2, 12), data=st.data())
def test_components_are_those_of_a_full_decomposition(seed: int, n: int, dimensions: int, data: st.DataObject) -> None:
    features = _features(seed, n, dimensions)
    k = data.draw(st.integers(1, min(n, dimensions)))
    axes = fit_pca(features, k)
    reference = PCA(k, svd_solver="full").fit(features.astype(np.float64))
    np.testing.assert_allclose(axes.explained_variance_ratio, reference.explained_variance_ratio_, atol=1e-5)
    # Distances do not depend on the choice of axes within a subspace of equal variances.
    ours, theirs = axes.transform(features), reference.transform(features)
    np.testing.assert_allclose((ours**2).sum(), (theirs**2).sum(), rtol=1e-4)
    np.testing.assert_allclose(axes.axes @ axes.axes.T, np.eye(k), atol=1e-5)


def test_signs_are_fixed() -> None:
    features = _features(0, 200, 10)
    axes, mirrored = fit_pca(features, 5), fit_pca(-features, 5)
    assert (np.take_along_axis(axes.axes, np.abs(axes.axes).argmax(axis=1)[:, None], axis=1) > 0).all()
    np.testing.assert_allclose(axes.axes, mirrored.axes, atol=1e-5)


def test_a_large_mean_costs_no_precision() -> None:
    features = _features(0, 500, 8)
    plain, shifted = fit_pca(features, 3), fit_pca(features + np.float32(3000), 3)
    np.testing.assert_allclose(shifted.explained_variance_ratio, plain.explained_variance_ratio, rtol=1e-3)
    np.testing.assert_allclose(shifted.axes, plain.axes, atol=1e-2)


def test_new_rows_are_projected_with_the_fitted_mean() -> None:
    features, others = _features(0, 50, 6), _features(1, 20_000, 6)
    axes = fit_pca(features, 2)
    projected = axes.transform(others)
    assert projected.dtype == np.float32
    np.testing.assert_allclose(projected, (others - features.mean(axis=0)) @ axes.axes.T, atol=1e-4)


def test_a_read_only_memory_map_is_read_and_not_written(tmp_path: Path) -> None:
    features = _features(0, 40, 6)
    np.save(tmp_path / "f.npy", features)
    mapped = np.load(tmp_path / "f.npy", mmap_mode="r")
    with_map, without = fit_pca(mapped, 3), fit_pca(features, 3)
    assert with_map.axes.tobytes() == without.axes.tobytes()
    assert (np.load(tmp_path / "f.npy") == features).all()


def test_more_components_than_rows_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        fit_pca(_features(0, 3, 10), 4)


def test_rows_are_worked_on_in_blocks_that_cover_them() -> None:
    for n, dimensions in ((1, 3), (8192, 3), (8193, 3), (20_000, 2), (50, 2**25)):
        features = np.broadcast_to(np.float32(0), (n, dimensions))
        sizes = [len(block) for block in row_blocks(features)]
        assert sum(sizes) == n
        assert max(sizes) * dimensions * 4 <= max(2**26, dimensions * 4)
        assert max(sizes) <= 8192


@pytest.mark.parametrize("n", [8191, 8192, 8193, 16_385])
def test_no_row_is_lost_at_the_boundaries_of_blocks(n: int) -> None:
    features = _features(3, n, 6)
    features[-1] = 1000  # a lone row in the last block decides the first axis
    axes = fit_pca(features, 3)
    reference = PCA(3, svd_solver="full").fit(features.astype(np.float64))
    np.testing.assert_allclose(axes.explained_variance_ratio, reference.explained_variance_ratio_, rtol=1e-4)
    np.testing.assert_allclose(np.abs(axes.axes @ reference.components_.T), np.eye(3), atol=1e-3)


def test_fewer_rows_than_features() -> None:
    features = _features(4, 20, 300)
    axes = fit_pca(features, 19)
    reference = PCA(19, svd_solver="full").fit(features.astype(np.float64))
    np.testing.assert_allclose(axes.explained_variance_ratio, reference.explained_variance_ratio_, rtol=1e-4)
    np.testing.assert_allclose(np.abs(axes.transform(features)), np.abs(reference.transform(features)), atol=1e-3)


def test_a_constant_feature_takes_no_part() -> None:
    features = _features(5, 100, 6)
    features[:, 2] = 7
    axes = fit_pca(features, 5)
    np.testing.assert_allclose(axes.axes[:, 2], 0, atol=1e-6)
    assert np.isfinite(axes.transform(features)).all()


def test_peak_memory_does_not_grow_with_the_number_of_rows(tmp_path: Path) -> None:
    peaks = []
    for n in (40_000, 160_000):
        np.lib.format.open_memmap(tmp_path / "f.npy", mode="w+", dtype=np.float32, shape=(n, 64))[::3] = 1
        features = np.load(tmp_path / "f.npy", mmap_mode="r")
        tracemalloc.start()
        fit_pca(features, 2)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0] < 40_000 * 64 * 4


def test_equal_rows_have_no_variance_to_explain() -> None:
    fitted = fit_pca(np.ones((10, 4), dtype=np.float32), 2)
    assert fitted.explained_variance_ratio.tolist() == [0, 0]
    assert np.allclose(fitted.axes @ fitted.axes.T, np.eye(2))
