"""Bringing the features of one network into the space of another.

Two networks of one recipe find much the same features in another order and basis. The orthogonal
Procrustes problem (Schoenemann 1966, A generalized solution of the orthogonal Procrustes problem;
with scaling and centring, Schoenemann & Carroll 1970) is to find the rotation, scale and shift that
bring the features of the same images closest to each other in the sum of squares. Distances between
images of one network stay as they were, but for the scale.
"""

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

Float = NDArray[np.float64]

# Rows transformed at a time, in double precision.
_ROWS = 4096


class PairedSums:
    """Sums over pairs of rows, all that a fit needs of them; rows may come in any blocks.

    Attributes:
        values: (1 + 2 D + 2 + D * D,) float64: pairs, the sums of the sources and of the targets, their sums of
            squares, and the cross products. One array, so that sums of several processes add up as such.
    """

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self.values = np.zeros(1 + 2 * dimensions + 2 + dimensions**2)

    def add(self, source: NDArray[np.floating], target: NDArray[np.floating]) -> None:
        """Count in the pairs of rows of `source` and `target`, both (B, D)."""
        assert source.shape == target.shape == (len(source), self._dimensions), (source.shape, target.shape)
        x, y = source.astype(np.float64), target.astype(np.float64)
        squares = [np.vdot(x, x), np.vdot(y, y)]
        self.values += np.concatenate([[len(x)], x.sum(0), y.sum(0), squares, (x.T @ y).ravel()])

    def centred(self) -> tuple[Float, Float, Float, float, float]:
        """Mean source (D,) and target (D,); of the centred rows, cross products (D, D) and sums of squares."""
        d = self._dimensions
        count, (source, target) = self.values[0], self.values[1 : 1 + 2 * d].reshape(2, d) / self.values[0]
        source_squares, target_squares = self.values[1 + 2 * d : 3 + 2 * d]
        cross = self.values[3 + 2 * d :].reshape(d, d) - count * np.outer(source, target)
        return (
            source,
            target,
            cross,
            float(source_squares - count * source @ source),
            float(target_squares - count * target @ target),
        )


@dataclass(frozen=True, kw_only=True)
class Similarity:
    """x -> scale * (x - source_mean) @ rotation + target_mean.

    Attributes:
        rotation: (D, D), orthogonal; may reflect.
        explained: share of the target's variance that the transformed source has, 0 to 1.
    """

    rotation: Float
    scale: float
    source_mean: Float
    target_mean: Float
    explained: float

    def apply(self, features: NDArray[np.floating]) -> NDArray[np.float32]:
        """(N, D) -> (N, D), computed in double precision."""
        moved = self.scale * (features.astype(np.float64) - self.source_mean) @ self.rotation + self.target_mean
        return moved.astype(np.float32)

    def apply_to_rows(self, features: NDArray[np.float32], rows: NDArray[np.int64]) -> None:
        """Replace these rows of `features` (N, D), which may be memory-mapped, a few at a time."""
        for start in range(0, len(rows), _ROWS):
            block = rows[start : start + _ROWS]
            features[block] = self.apply(features[block])


def fit_similarity(sums: PairedSums) -> Similarity:
    """The rotation, scale and shift that bring the sources closest to their targets, in the sum of squares.

    Raises:
        ValueError: the sources are all alike, or the targets are.
    """
    source_mean, target_mean, cross, source_squares, target_squares = sums.centred()
    # Below what rounding leaves of the sums of equal numbers, there is no spread.
    noise = np.finfo(np.float64).eps * sums.values[0] * len(source_mean)
    for mean, squares in ((source_mean, source_squares), (target_mean, target_squares)):
        if squares <= noise * (mean @ mean):
            raise ValueError("all features are alike")
    left, singular, right = scipy.linalg.svd(cross)
    return Similarity(
        rotation=left @ right,
        scale=float(singular.sum() / source_squares),
        source_mean=source_mean,
        target_mean=target_mean,
        explained=float(singular.sum() ** 2 / (source_squares * target_squares)),
    )
