"""Scorers by density: DBSCAN and HDBSCAN per class, by scikit-learn. `eps_search` chooses the radius of DBSCAN."""

from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN, HDBSCAN
from sklearn.neighbors import NearestNeighbors

from pipeline.scoring.base import SPACE_NAMES, ScoredImages, Scorer, ScorerInputs, Space, each_class, format_distinct
from pipeline.typing import MapFn

# Radii and clusters need equal distances; scikit-learn's brute force would round differently.
_ALGORITHM = "kd_tree"

ROUNDING = 1e-9
"""Relative difference below which distances count as equal: far above rounding errors."""


def core_distances(points: NDArray[np.float64], min_samples: int) -> NDArray[np.float64]:
    """Return the distance (n,) of points (n, d) to their `min_samples`-th nearest point, counting themselves.

    Infinite if n < min_samples.
    """
    if len(points) < min_samples:
        return np.full(len(points), np.inf)
    return _nearest(points, min_samples)[0][:, -1]


def release_radii(points: NDArray[np.float64], min_samples: int) -> NDArray[np.float64]:
    """Return the smallest eps (n,), in the unit of points (n, d), at which each point is not DBSCAN noise.

    0 for points with min_samples - 1 duplicates or more, infinite if n < min_samples.

    One nearest-neighbor query gives the noise of DBSCAN (Ester et al., 1996) for every radius eps. Let d be
    the distance, m = min_samples, and c_j the core distance of point j: that to the m-th nearest point,
    counting j itself. Point j is a core point exactly if c_j <= eps. Point i is not noise exactly if some
    core point j (i itself counts) has d_ij <= eps. Hence i is noise exactly if eps < r_i, with

        r_i = min over j of max(d_ij, c_j),

    its release radius. The minimum needs i and its m - 1 nearest other points only: j = i gives r_i <= c_i,
    and any point j beyond them has d_ij >= c_i, hence max(d_ij, c_j) >= c_i, and cannot lower the minimum.
    """
    n = len(points)
    if n < min_samples:
        return np.full(n, np.inf)
    distances, neighbors = _nearest(points, min_samples)
    core = distances[:, -1]
    through_neighbors = np.maximum(distances, core[neighbors]).min(axis=1)
    radii: NDArray[np.float64] = np.minimum(core, through_neighbors)
    return radii


def cluster(points: NDArray[np.float64], eps: float, min_samples: int) -> NDArray[np.int32]:
    """Return the labels (n,) of DBSCAN on points (n, d): clusters from 0, noise -1."""
    fitted = DBSCAN(eps=eps, min_samples=min_samples, algorithm=_ALGORITHM).fit(points)
    return np.asarray(fitted.labels_, dtype=np.int32)


def release_radii_by_class(
    points: NDArray[np.float64], labels: NDArray[np.int64], *, min_samples: int, map_fn: MapFn = map
) -> NDArray[np.float64]:
    """Return `release_radii` (N,) of points (N, d), computed for each class separately."""
    return each_class(partial(release_radii, min_samples=min_samples), labels, points, map_fn=map_fn)


def reconcile_radii(
    radii: NDArray[np.float64], eps: NDArray[np.float64], noise: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Make release radii (N,) agree with DBSCAN's own decision `noise` (N,) at `eps` (N,).

    The two differ where rounding decides: at an eps that equals a distance. Only there a radius moves,
    by at most `ROUNDING` relative to eps, to the side on which DBSCAN put the point.
    """
    reconciled = np.where(noise, np.maximum(radii, eps * (1 + ROUNDING)), np.minimum(radii, eps))
    finite = np.isfinite(radii)
    assert np.allclose(reconciled[finite], radii[finite], rtol=2 * ROUNDING, atol=0), "DBSCAN's noise differs"
    return reconciled


def _nearest(points: NDArray[np.float64], k: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return distances and rows (n, k). Points are queried as if new, so each counts itself, at distance 0."""
    distances, rows = NearestNeighbors(n_neighbors=k, algorithm=_ALGORITHM).fit(points).kneighbors(points)
    return distances, rows


def _dbscan_values(inputs: ScorerInputs, *, space: Space, min_samples: int) -> NDArray[np.float64]:
    """Return the release radii (N,), in the unit of the space."""
    return release_radii_by_class(inputs.points(space), inputs.labels, min_samples=min_samples, map_fn=inputs.map_fn)


def _dbscan_clusters(
    inputs: ScorerInputs, thresholds: NDArray[np.float64], *, space: Space, min_samples: int
) -> NDArray[np.int32]:
    task = partial(_cluster, min_samples=min_samples)
    return each_class(task, inputs.labels, inputs.points(space), thresholds, map_fn=inputs.map_fn)


def _dbscan_reasons(scored: ScoredImages) -> list[str]:
    where = SPACE_NAMES[scored.options["space"]]
    phrases = []
    for radius, eps in scored.pairs:
        needed, used = format_distinct(radius, eps)
        if radius > eps:
            phrases.append(f"isolated {where}: joins a cluster only at eps {needed}, used {used}")
        else:
            phrases.append(f"in a cluster of its class {where}: joins it at eps {needed}, used {used}")
    return phrases


# At the top of the module, so that other processes can find it.
def _cluster(points: NDArray[np.float64], eps: NDArray[np.float64], *, min_samples: int) -> NDArray[np.int32]:
    return cluster(points, float(eps[0]), min_samples)


DBSCAN_SCORER = Scorer(
    values=_dbscan_values, reasons=_dbscan_reasons, clusters=_dbscan_clusters, min_per_class=("min_samples",)
)


_SUSPICION_AND_CLUSTER = np.dtype([("suspicion", np.float64), ("cluster", np.int32)])


def fit_hdbscan(points: NDArray[np.float64], min_cluster_size: int, min_samples: int) -> NDArray[np.void]:
    """Return the fields `suspicion` and `cluster` (n,) of points (n, d) from one fit of HDBSCAN.

    `suspicion` is 1 - membership strength for a point in a cluster, and 1 to 2 for noise. HDBSCAN (Campello, Moulavi
    and Sander, 2013) gives noise no order. Here the noise point with the largest core distance has 2, and the others
    less in proportion. A threshold of 1 is HDBSCAN's own decision. `cluster` is -1 for noise.
    """
    # Most classes are one cluster; without allow_single_cluster such a class would be split, or all noise.
    fitted = HDBSCAN(
        min_cluster_size=min_cluster_size, min_samples=min_samples, allow_single_cluster=True, copy=True
    ).fit(points)
    core = core_distances(points, min_samples)
    isolation = core / core.max() if core.max() > 0 else np.ones(len(points))
    noise = fitted.labels_ == -1
    result = np.empty(len(points), dtype=_SUSPICION_AND_CLUSTER)
    # Above 1 even for the least isolated noise, which may have duplicates at distance 0.
    result["suspicion"] = np.where(noise, np.maximum(1 + isolation, np.nextafter(1, 2)), 1 - fitted.probabilities_)
    result["cluster"] = fitted.labels_
    return result


def _hdbscan(
    inputs: ScorerInputs, *, space: Space, min_cluster_size: int, min_samples: int
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    task = partial(fit_hdbscan, min_cluster_size=min_cluster_size, min_samples=min_samples)
    fitted = each_class(task, inputs.labels, inputs.points(space), map_fn=inputs.map_fn)
    return np.ascontiguousarray(fitted["suspicion"]), np.ascontiguousarray(fitted["cluster"])


def _hdbscan_values(
    inputs: ScorerInputs, *, space: Space, min_cluster_size: int, min_samples: int
) -> NDArray[np.float64]:
    return _hdbscan(inputs, space=space, min_cluster_size=min_cluster_size, min_samples=min_samples)[0]


def _hdbscan_reasons(scored: ScoredImages) -> list[str]:
    where, min_size = SPACE_NAMES[scored.options["space"]], scored.options["min_cluster_size"]
    phrases = []
    for value, threshold in scored.pairs:
        dropped = value > threshold
        if value > 1:
            phrase = f"in no cluster of {min_size} or more {where}"
            phrases.append(phrase if dropped else f"{phrase}, but less isolated than the threshold")
        else:
            strength = f"in a cluster of its class {where} with strength"
            phrases.append(f"{strength} {'only ' * dropped}{1 - value:.2f}")
    return phrases


HDBSCAN_SCORER = Scorer(
    values=_hdbscan_values,
    reasons=_hdbscan_reasons,
    values_and_clusters=_hdbscan,
    min_per_class=("min_cluster_size", "min_samples"),
)
