"""Principal component analysis."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA

_ROWS = 8192


@dataclass(frozen=True, kw_only=True)
class PrincipalAxes:
    """A fitted projection from D features to k components.

    Attributes:
        mean: (D,) float32, of the features it was fitted to.
        axes: (k, D) float32, orthonormal rows by falling variance; the entry of largest magnitude
            of each is positive.
        explained_variance_ratio: (k,), each component's share of the variance of all D features.
    """

    mean: NDArray[np.float32]
    axes: NDArray[np.float32]
    explained_variance_ratio: NDArray[np.float32]

    def project(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Components (n, k) of features (n, D), block by block."""
        projected = np.empty((len(features), len(self.axes)), dtype=np.float32)
        for start in range(0, len(features), _ROWS):
            block = slice(start, start + _ROWS)
            projected[block] = (features[block] - self.mean) @ self.axes.T
        return projected


def fit_principal_axes(features: NDArray[np.float32], n_components: int) -> PrincipalAxes:
    """The `n_components` directions of largest variance of features (N, D).

    From the eigenvectors of the D x D covariance matrix: exact, so it needs no seed, and for the
    widths of penultimate features as fast as a randomised decomposition (12,000 x 2048 on two
    cores: 1.0 s against 0.9 s). Equal inputs give equal bits for equal numbers of BLAS threads.

    Memory: one float32 copy of the features beside D x D.

    Args:
        n_components: at most min(N, D).
    """
    assert features.ndim == 2, features.shape
    assert n_components <= min(features.shape), (n_components, features.shape)
    mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
    # scikit-learn subtracts the mean from the covariance instead, which in float32 cancels
    # catastrophically where a feature's mean is large against its spread.
    centred = np.subtract(features, mean, dtype=np.float32)
    fitted = PCA(n_components=n_components, svd_solver="covariance_eigh", copy=False).fit(centred)
    return PrincipalAxes(mean=mean, axes=fitted.components_, explained_variance_ratio=fitted.explained_variance_ratio_)
