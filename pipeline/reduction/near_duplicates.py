"""Near duplicates among images: pairs that are nearer in the features, and in small pictures, than chance explains."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.special import digamma

from pipeline.reduction.neighbors import nearest_neighbors
from pipeline.reduction.pca import fit_pca
from pipeline.typing import row_blocks

NEIGHBORS = 24
"""Nearest other images with which each image is compared."""

MAX_CHANCE_PAIRS = 1.0
"""Expected number of pairs of different images that pass the test of features."""

MIN_PIXEL_CORRELATION = 0.9
"""Smallest correlation of two gray thumbnails that show the same picture."""

PASSES = 2
"""Passes over all images that are reported: the search of neighbors, and the comparison with them."""

# The search reads this many principal components; the candidates are then compared by all features.
_MAX_COMPONENTS = 64
_MAX_BYTES = 2**26
_THUMBNAIL_SIDE = 8
# Standard deviation of the gray values, 0 to 255, below which a thumbnail counts as blank.
_FLAT = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class NearDuplicates:
    """P pairs of near duplicates among N rows, the least likely by chance first.

    Attributes:
        pairs: (P, 2) int64 rows, the smaller one first.
        similarity: (P,) float32, cosine of the features, -1 to 1.
        chance_pairs: (P,) float64, expected number of pairs of different images that are as near, from 0.
        pixel_correlation: (P,) float32, of gray thumbnails, -1 to 1; NaN without images.
        dimension: intrinsic dimension of the features, from 0.
        n_candidates: pairs that pass the test of features.
        search: settings of the neighbor search.
    """

    pairs: NDArray[np.int64]
    similarity: NDArray[np.float32]
    chance_pairs: NDArray[np.float64]
    pixel_correlation: NDArray[np.float32]
    dimension: float
    n_candidates: int
    search: dict[str, str | int]

    def select(self, index: NDArray[np.int64]) -> "NearDuplicates":
        """Return some of the pairs, by their index."""
        columns = ("pairs", "similarity", "chance_pairs", "pixel_correlation")
        return replace(self, **{name: getattr(self, name)[index] for name in columns})


def near_duplicates(
    features: NDArray[np.float32],
    images: NDArray[np.uint8] | None = None,
    *,
    test_features: NDArray[np.float32] | None = None,
    test_images: NDArray[np.uint8] | None = None,
    max_chance_pairs: float = MAX_CHANCE_PAIRS,
    min_pixel_correlation: float = MIN_PIXEL_CORRELATION,
    seed: int = 0,
    report: Callable[[int], None] = lambda _: None,
) -> NearDuplicates:
    """Return the pairs of near duplicates among N images and, if given, M test images.

    A threshold on the similarity would differ between networks and data sets. The test asks instead how often
    different images are as near. Around a point of a locally uniform distribution of dimension m, the mean number of
    points within a distance d, given the distance d_K to the K-th neighbor, is (K - 1) (d / d_K)^m (Levina and Bickel,
    2004, Maximum likelihood estimation of intrinsic dimension). A pair is a candidate if N + M times this number, at
    the denser one of its two ends, is at most `max_chance_pairs`. The dimension is estimated from the outer half of
    K = 24 neighbors, so that up to 12 copies of an image do not count as density.

    A network that was trained on the images can give different images of one class nearly equal features. With
    `images`, the gray thumbnails of a candidate pair must correlate as well, with one of them as it is or mirrored.

    Of an image with more than 12 near duplicates, such as the frames of a video, some are not found.

    Args:
        features: (N, D) finite, penultimate features; may be memory-mapped. Only their directions count.
        images: uint8 (N, H, W, 3); may be memory-mapped.
        test_features, test_images: those of M other images by the same network: rows N to N + M - 1 of the result.
        max_chance_pairs: above 0.
        min_pixel_correlation: -1 to 1.
        seed: of the inverted file's k-means.
        report: called with the number of images done since its last call, in each of `PASSES` passes over all.

    Memory: about 100 numbers for each image, and blocks of 64 MiB.
    """
    parts = [features] if test_features is None else [features, test_features]
    n = sum(map(len, parts))
    k = min(NEIGHBORS, n - 1)
    assert k >= 2, n
    found = nearest_neighbors(_components(parts), k, seed=seed, report=report)
    distances = _distances(parts, found.rows, report)
    dimension = intrinsic_dimension(distances)
    expected = n * chance_neighbors(distances, found.rows, dimension)
    rows, columns = np.nonzero(expected <= max_chance_pairs)
    pairs, index = _unique_pairs(rows, columns, found.rows)
    chance, similarity = expected[index], 1 - distances[index] ** 2 / 2
    correlation = np.full(len(pairs), np.nan)
    if images is not None:
        correlation = _pixel_correlations([images] if test_images is None else [images, test_images], pairs)
    kept = np.flatnonzero(~(correlation < min_pixel_correlation))
    order = kept[np.lexsort((*pairs[kept].T[::-1], -similarity[kept], chance[kept]))]
    return NearDuplicates(
        pairs=pairs[order],
        similarity=similarity[order].astype(np.float32),
        chance_pairs=chance[order],
        pixel_correlation=correlation[order].astype(np.float32),
        dimension=dimension,
        n_candidates=len(pairs),
        search=found.search,
    )


def _components(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return principal components (n, at most 64) of the normalized features of all parts."""
    if _are_equal(parts):
        return np.zeros((sum(map(len, parts)), 1), dtype=np.float32)
    n_components = min(_MAX_COMPONENTS, *parts[0].shape)
    axes = fit_pca(parts[0], n_components, map_fn=_map_normalized)
    return np.concatenate([axes.transform(part, map_fn=_map_normalized) for part in parts])


def _are_equal(parts: Sequence[NDArray[np.float32]]) -> bool:
    """Return whether all features have one direction, and so no principal components."""
    first = _normalized(np.asarray(parts[0][:1]))
    return all((_normalized(block) == first).all() for part in parts for block in row_blocks(part))


def _map_normalized(task: Callable[[Any], Any], blocks: Iterable[Any]) -> Iterator[Any]:
    """Apply a task to blocks of normalized features, since all of them may not fit in memory."""
    return (task(_normalized(block)) for block in blocks)


def _normalized(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return features (..., D) scaled to length 1; features of zeros stay zero."""
    # The largest entry first, since squares of float32 can overflow.
    scaled = features / np.maximum(np.abs(features).max(axis=-1, keepdims=True), np.finfo(np.float32).tiny)
    norms = np.linalg.norm(scaled, axis=-1, keepdims=True)
    return np.asarray(scaled / np.where(norms > 0, norms, 1), dtype=np.float32)


def _distances(
    parts: Sequence[NDArray[np.float32]], neighbors: NDArray[np.int32], report: Callable[[int], None]
) -> NDArray[np.float64]:
    """Return the distances (n, k) of normalized features to those of the neighbors (n, k)."""
    distances = np.empty(neighbors.shape)
    size = max(1, _MAX_BYTES // (4 * neighbors.shape[1] * parts[0].shape[1]))
    for start in range(0, len(neighbors), size):
        block = neighbors[start : start + size]
        own = _normalized(_gather(parts, np.arange(start, start + len(block))))
        differences = _normalized(_gather(parts, block)) - own[:, None]
        distances[start : start + size] = np.sqrt(np.einsum("nkd,nkd->nk", differences, differences, dtype=np.float64))
        report(len(block))
    return distances


def _gather(parts: Sequence[NDArray[Any]], rows: NDArray[np.integer]) -> NDArray[Any]:
    """Return `rows` of the parts as if they were one array, which would not fit in memory."""
    if len(parts) == 1:
        return np.asarray(parts[0][rows])
    first, second = parts
    gathered = np.asarray(first[np.minimum(rows, len(first) - 1)])
    beyond = rows >= len(first)
    gathered[beyond] = second[rows[beyond] - len(first)]
    return gathered


def intrinsic_dimension(distances: NDArray[np.float64]) -> float:
    """Return the intrinsic dimension from the distances (n, K) to the nearest neighbors, in any order.

    It is estimated from the ratios of the distances to the neighbors K and K / 2, whose logarithms have the mean
    (digamma(K) - digamma(K / 2)) / m. It is 0 if most points coincide with their K / 2 nearest ones.
    """
    k = distances.shape[1]
    half = (k + 1) // 2
    ordered = np.sort(distances, axis=1)
    inner, outer = ordered[:, half - 1], ordered[:, -1]
    apart = inner > 0
    if apart.mean() < 0.5:
        return 0.0
    mean_log = float(np.log(outer[apart] / inner[apart]).mean())
    return float(digamma(k) - digamma(half)) / mean_log if mean_log > 0 else np.inf


def chance_neighbors(
    distances: NDArray[np.float64], neighbors: NDArray[np.integer], dimension: float
) -> NDArray[np.float64]:
    """Return the expected number (n, K) of different points within the distance to each neighbor.

    Args:
        distances, neighbors: (n, K), in any order; the reach of a point is the largest distance.
        dimension: intrinsic, from 0.
    """
    reach = distances.max(axis=1)
    densest = np.minimum(reach[:, None], reach[neighbors])
    ratio = np.divide(distances, densest, out=np.zeros_like(distances), where=densest > 0)
    expected: NDArray[np.float64] = (distances.shape[1] - 1) * np.minimum(ratio, 1) ** dimension
    return np.where(distances > 0, expected, 0.0)  # different images never have equal features by chance


def _unique_pairs(
    rows: NDArray[np.int64], columns: NDArray[np.int64], neighbors: NDArray[np.int32]
) -> tuple[NDArray[np.int64], tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return each pair once (P, 2), the smaller row first, and where in (n, K) it is."""
    pairs = np.sort(np.stack([rows, neighbors[rows, columns].astype(np.int64)], axis=1), axis=1)
    unique, first = np.unique(pairs, axis=0, return_index=True)
    return unique, (rows[first], columns[first])


def _pixel_correlations(parts: Sequence[NDArray[np.uint8]], pairs: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the larger correlation (P,) of each pair's gray thumbnails: with the second one as it is, or mirrored."""
    if not len(pairs):
        return np.empty(0)
    rows, positions = np.unique(pairs, return_inverse=True)
    thumbnails = np.stack([_thumbnail(_gather(parts, row)[0]) for row in rows[:, None]])
    first, second = (thumbnails[index] for index in positions.reshape(-1, 2).T)
    return np.maximum(_correlation(first, second), _correlation(first, second[:, :, ::-1]))


def _thumbnail(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return gray means (8, 8) of an image (H, W, 3)."""
    size = (_THUMBNAIL_SIDE, _THUMBNAIL_SIDE)
    return np.asarray(Image.fromarray(image).convert("L").resize(size, Image.Resampling.BOX), dtype=np.float64)


def _correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the correlation (P,) of thumbnails (P, S, S); 1 where both are flat, 0 where one is."""
    centered = [values - values.mean(axis=(1, 2), keepdims=True) for values in (first, second)]
    deviations = [np.sqrt((values**2).mean(axis=(1, 2))) for values in centered]
    flat = [deviation < _FLAT for deviation in deviations]
    covariance = (centered[0] * centered[1]).mean(axis=(1, 2))
    correlation = covariance / np.where(flat[0] | flat[1], 1, deviations[0] * deviations[1])
    return np.where(flat[0] & flat[1], 1.0, np.where(flat[0] | flat[1], 0.0, correlation))
