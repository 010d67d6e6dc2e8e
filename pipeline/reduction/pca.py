"""Principal component analysis of more features than fit in memory."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from pipeline.typing import MapFn, row_blocks


@dataclass(frozen=True, kw_only=True)
class FittedPca:
    """A fitted projection from D features to k components.

    Attributes:
        mean: (D,) float32, of the features it was fitted to.
        axes: (k, D) float32, orthonormal rows by descending variance; the entry of largest magnitude
            of each is positive.
        explained_variance_ratio: (k,), each component's share of the variance of all D features.
    """

    mean: NDArray[np.float32]
    axes: NDArray[np.float32]
    explained_variance_ratio: NDArray[np.float32]

    def transform(self, features: NDArray[np.float32], *, map_fn: MapFn = map) -> NDArray[np.float32]:
        """Return components (n, k) of features (n, D); blocks of rows are the tasks of `map_fn`."""
        components = np.empty((len(features), len(self.axes)), dtype=np.float32)
        start = 0
        for block in map_fn(self._transform_block, row_blocks(features)):
            components[start : start + len(block)] = block
            start += len(block)
        return components

    def _transform_block(self, block: NDArray[np.float32]) -> NDArray[np.float32]:
        centered: NDArray[np.float32] = np.asarray(block) - self.mean
        components: NDArray[np.float32] = centered @ self.axes.T
        return components


def fit_pca(features: NDArray[np.float32], n_components: int, *, map_fn: MapFn = map) -> FittedPca:
    """Fit the `n_components` directions of largest variance of features (N, D).

    Two passes over blocks of rows compute the mean and the scatter matrix X'X of the centered features; its
    eigenvectors are the directions. This is exact and needs no seed. Power iterations on blocks (Halko, Martinsson and
    Tropp, 2011, doi:10.1137/090771806) read the features once more for every iteration and stay approximate. They save
    arithmetic only if D is far above the widths of penultimate features, 512 to 2048, where reading takes most of the
    time. Wider features are computed in the same way.

    Each block is centered before it is multiplied: subtracting N times the squared mean afterwards would cancel
    catastrophically if a feature's mean is large relative to its spread. Products are float32 within a block; blocks
    are summed in float64, in their order. Equal inputs give equal bits for equal numbers of BLAS threads, on any
    machine that `map_fn` uses.

    Memory: O(D^2 + block); a memory map is never loaded completely.

    Args:
        n_components: at most min(N, D).
        map_fn: runs the blocks.
    """
    assert features.ndim == 2, features.shape
    assert n_components <= min(features.shape), (n_components, features.shape)
    n, dimensions = features.shape
    blocks = row_blocks(features)
    sums: NDArray[np.float64] = np.zeros(dimensions)
    for block_sums in map_fn(_column_sums, blocks):
        sums += block_sums
    mean = (sums / n).astype(np.float32)
    scatter = np.zeros((dimensions, dimensions))
    for product in map_fn(partial(_centered_scatter, mean), blocks):
        scatter += product
    total = float(np.trace(scatter))
    largest = (dimensions - n_components, dimensions - 1)
    eigenvalues, vectors = eigh(scatter, subset_by_index=largest, overwrite_a=True, check_finite=False)
    return FittedPca(
        mean=mean,
        axes=_with_fixed_signs(vectors.T[::-1]).astype(np.float32),
        # Rounding can make a variance of zero slightly negative.
        explained_variance_ratio=(np.maximum(eigenvalues[::-1], 0) / (total or 1.0)).astype(np.float32),
    )


def _column_sums(block: NDArray[np.float32]) -> NDArray[np.float64]:
    sums: NDArray[np.float64] = np.asarray(block).sum(axis=0, dtype=np.float64)
    return sums


def _centered_scatter(mean: NDArray[np.float32], block: NDArray[np.float32]) -> NDArray[np.float32]:
    centered = np.asarray(block) - mean
    scatter: NDArray[np.float32] = centered.T @ centered
    return scatter


def _with_fixed_signs(axes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Flip rows so that their entry of largest magnitude is positive, as scikit-learn's `svd_flip` does."""
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    flipped: NDArray[np.float64] = axes * np.sign(largest)
    return flipped
