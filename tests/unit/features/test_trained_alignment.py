"""Features of one network in the space of another."""

from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import ortho_group

from pipeline.features.trained import PairedSums, fit_similarity

_SEEDS = st.integers(0, 2**32 - 1)


def _sums(source: NDArray[np.float32], target: NDArray[np.float32], block: int | None = None) -> PairedSums:
    sums = PairedSums(source.shape[1])
    for start in range(0, len(source), block or len(source)):
        rows = slice(start, start + (block or len(source)))
        sums.add(source[rows], target[rows])
    return sums


def _spread(rng: np.random.Generator, n: int, d: int) -> NDArray[np.float32]:
    """Rows around another center, with another variance along each axis."""
    rows = rng.normal(size=(n, d)) * rng.uniform(0.5, 3, d) + rng.normal(scale=4, size=d)
    return rows.astype(np.float32)


@settings(deadline=None)
@given(seed=_SEEDS, n=st.integers(2, 60), d=st.integers(2, 24), scale=st.floats(0.01, 100), shift=st.floats(-50, 50))
def test_a_rotated_scaled_and_shifted_copy_is_brought_back(
    seed: int, n: int, d: int, scale: float, shift: float
) -> None:
    """Also with fewer images than features, where the rotation is not the only one."""
    rng = np.random.default_rng(seed)
    target = _spread(rng, n, d)
    source = (scale * target @ ortho_group.rvs(d, random_state=rng) + shift * rng.normal(size=d)).astype(np.float32)
    fitted = fit_similarity(_sums(source, target))
    np.testing.assert_allclose(fitted.rotation @ fitted.rotation.T, np.eye(d), atol=1e-10)
    np.testing.assert_allclose(fitted.scale, 1 / scale, rtol=1e-2)
    # float32 has lost digits of a copy that lies far off.
    lost = 1e-5 * (1 + np.abs(source).max() / scale)
    np.testing.assert_allclose(fitted.apply(source), target, rtol=1e-4, atol=lost)
    assert fitted.explained == pytest.approx(1, abs=1e-3)


@settings(deadline=None)
@given(seed=_SEEDS, n=st.integers(20, 60), d=st.integers(2, 8), block=st.integers(1, 70))
def test_blocks_change_nothing_beyond_rounding(seed: int, n: int, d: int, block: int) -> None:
    rng = np.random.default_rng(seed)
    source, target = _spread(rng, n, d), _spread(rng, n, d)
    whole, parts = fit_similarity(_sums(source, target)), fit_similarity(_sums(source, target, block))
    np.testing.assert_allclose(parts.apply(source), whole.apply(source), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(parts.scale, whole.scale, rtol=1e-8)
    rest = 1 + 2 * d + 2
    both = [_sums(source[:7], target[:7]).values, _sums(source[7:], target[7:]).values]
    np.testing.assert_allclose(sum(both), _sums(source, target, block).values, rtol=1e-10, atol=1e-6)
    assert len(both[0]) == rest + d * d


@settings(deadline=None, max_examples=30)
@given(seed=_SEEDS, n=st.integers(30, 60), d=st.integers(2, 8))
def test_the_fit_is_that_of_scipy_and_no_other_is_closer(seed: int, n: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    source, target = _spread(rng, n, d), _spread(rng, n, d)
    fitted = fit_similarity(_sums(source, target))
    x, y = source.astype(np.float64), target.astype(np.float64)
    x, y = x - x.mean(0), y - y.mean(0)
    rotation, singular = scipy.linalg.orthogonal_procrustes(x, y)
    np.testing.assert_allclose(fitted.rotation, rotation, atol=1e-5)
    np.testing.assert_allclose(fitted.scale, singular / (x**2).sum(), rtol=1e-6)
    residual = ((fitted.apply(source) - target) ** 2).sum()
    np.testing.assert_allclose(fitted.explained, 1 - residual / (y**2).sum(), atol=1e-5)
    other = x @ ortho_group.rvs(d, random_state=rng) * rng.uniform(0, 2)
    assert residual <= ((other - y) ** 2).sum() * (1 + 1e-6)


def test_rows_are_replaced_in_place_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.features.trained._ROWS", 3)
    rng = np.random.default_rng(0)
    source, target = _spread(rng, 20, 4), _spread(rng, 20, 4)
    fitted, changed = fit_similarity(_sums(source, target)), source.copy()
    rows = np.array([1, 2, 5, 8, 13, 14, 19])
    fitted.apply_to_rows(changed, rows)
    np.testing.assert_allclose(changed[rows], fitted.apply(source[rows]), rtol=1e-5)
    others = np.setdiff1d(np.arange(20), rows)
    np.testing.assert_array_equal(changed[others], source[others])


@pytest.mark.parametrize("equal", ["source", "target"])
def test_features_without_spread_have_no_fit(equal: str) -> None:
    spread = _spread(np.random.default_rng(0), 30, 5)
    flat = np.full_like(spread, 1 / 3)
    with pytest.raises(ValueError, match="equal"):
        fit_similarity(_sums(flat, spread) if equal == "source" else _sums(spread, flat))


def test_another_algorithm_is_tried_where_the_usual_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK's gesdd does not always converge where there are fewer images than features."""
    rng = np.random.default_rng(0)
    sums = PairedSums(6)
    sums.add(rng.normal(size=(4, 6)), rng.normal(size=(4, 6)))
    expected, svd = fit_similarity(sums), scipy.linalg.svd

    def failing(matrix: NDArray[np.float64], lapack_driver: str = "gesdd") -> Any:
        if lapack_driver == "gesdd":
            raise scipy.linalg.LinAlgError("SVD did not converge")
        return svd(matrix, lapack_driver=lapack_driver)

    monkeypatch.setattr(scipy.linalg, "svd", failing)
    source = rng.normal(size=(3, 6))
    assert fit_similarity(sums).explained == pytest.approx(expected.explained)
    assert fit_similarity(sums).apply(source).shape == (3, 6)
