"""Scorers that read densities: DBSCAN and HDBSCAN per class."""

from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN, HDBSCAN
from sklearn.neighbors import NearestNeighbors

from pipeline.scoring.base import (
    SPACE_NAMES,
    MapFn,
    ScoredImages,
    Scorer,
    ScorerInputs,
    Space,
    each_class,
    format_distinct,
)

# DBSCAN per class, and the radius at which each point stops being noise.
#
# The noise of DBSCAN (Ester et al., 1996) as a function of its radius eps is known from one
# nearest-neighbour query. Let d be the distance, m = min_samples, and c_j the core distance of point
# j: that to the m-th nearest point, counting j itself, so that j is a core point exactly if c_j <= eps.
# Point i is not noise exactly if some core point j (i itself counts) has d_ij <= eps, hence from
#
#     r_i = min over j of max(d_ij, c_j)
#
# on: its release radius, and i is noise exactly if eps < r_i. The minimum needs a look at i and its
# m - 1 nearest others only: j = i gives r_i <= c_i, and any other j has d_ij >= c_i, hence
# max(d_ij, c_j) >= c_i, and cannot do better.


# One way of computing distances for radii and clusters; scikit-learn's brute force would round differently.
_ALGORITHM = "kd_tree"

ROUNDING = 1e-9
"""Distances closer than this, relative to their size, count as equal: far above rounding errors."""


def core_distances(points: NDArray[np.float64], min_samples: int) -> NDArray[np.float64]:
    """(n,): distance of points (n, d) to their `min_samples`-th nearest, themselves counted; infinite if n is less."""
    if len(points) < min_samples:
        return np.full(len(points), np.inf)
    return _nearest(points, min_samples)[0][:, -1]


def release_radii(points: NDArray[np.float64], min_samples: int) -> NDArray[np.float64]:
    """Smallest eps, in the unit of points (n, d), at which DBSCAN does not call each of them noise.

    (n,); 0 for points with min_samples - 1 duplicates or more, infinite if n < min_samples.
    """
    n = len(points)
    if n < min_samples:
        return np.full(n, np.inf)
    distances, neighbours = _nearest(points, min_samples)
    core = distances[:, -1]
    through_neighbours = np.maximum(distances, core[neighbours]).min(axis=1)
    radii: NDArray[np.float64] = np.minimum(core, through_neighbours)
    return radii


def cluster(points: NDArray[np.float64], eps: float, min_samples: int) -> NDArray[np.int32]:
    """Labels (n,) of DBSCAN on points (n, d): clusters from 0, noise -1."""
    found = DBSCAN(eps=eps, min_samples=min_samples, algorithm=_ALGORITHM).fit(points)
    return np.asarray(found.labels_, dtype=np.int32)


def release_radii_by_class(
    points: NDArray[np.float64], labels: NDArray[np.int64], *, min_samples: int, each: MapFn = map
) -> NDArray[np.float64]:
    """`release_radii` (N,) of each class of points (N, d) among its own."""
    return each_class(partial(release_radii, min_samples=min_samples), labels, points, each=each)


def reconcile_radii(
    radii: NDArray[np.float64], eps: NDArray[np.float64], noise: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Release radii (N,) that agree with DBSCAN's own decision `noise` (N,) at `eps` (N,).

    The two differ where rounding decides: at an eps that equals a distance. There, and nowhere
    else, a radius moves by as much as `ROUNDING` to the side on which DBSCAN put the point.
    """
    settled = np.where(noise, np.maximum(radii, eps * (1 + ROUNDING)), np.minimum(radii, eps))
    finite = np.isfinite(radii)
    assert np.allclose(settled[finite], radii[finite], rtol=2 * ROUNDING, atol=0), "DBSCAN's noise is not as predicted"
    return settled


def _nearest(points: NDArray[np.float64], k: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Distances and rows (n, k); fitted points are queried as if new, so each counts itself, at distance 0."""
    distances, rows = NearestNeighbors(n_neighbors=k, algorithm=_ALGORITHM).fit(points).kneighbors(points)
    return distances, rows


def _dbscan_scores(evidence: ScorerInputs, *, space: Space, min_samples: int) -> NDArray[np.float64]:
    """The release radius, in the unit of the space."""
    return release_radii_by_class(evidence.points(space), evidence.labels, min_samples=min_samples, each=evidence.each)


def _dbscan_clusters(
    evidence: ScorerInputs, thresholds: NDArray[np.float64], *, space: Space, min_samples: int
) -> NDArray[np.int32]:
    task = partial(_cluster, min_samples=min_samples)
    return each_class(task, evidence.labels, evidence.points(space), thresholds, each=evidence.each)


def _dbscan_reasons(judged: ScoredImages) -> list[str]:
    where = SPACE_NAMES[judged.options["space"]]
    phrases = []
    for radius, eps in judged.pairs:
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
    values=_dbscan_scores, phrases=_dbscan_reasons, clusters=_dbscan_clusters, least_per_class=("min_samples",)
)


# HDBSCAN per class (Campello, Moulavi and Sander, 2013), by scikit-learn.


def suspicion(points: NDArray[np.float64], min_cluster_size: int, min_samples: int) -> NDArray[np.float64]:
    """(n,): 1 - strength of membership for points (n, d) in a cluster, 1 to 2 for noise.

    HDBSCAN gives noise no order. Here the noise point with the largest core distance has 2, and the
    others less in proportion. A threshold of 1 is HDBSCAN's own decision.
    """
    found = _fit(points, min_cluster_size, min_samples)
    core = core_distances(points, min_samples)
    isolation = core / core.max() if core.max() > 0 else np.ones(len(points))
    noise = found.labels_ == -1
    # Above 1 even for the least isolated noise, which may have duplicates at distance 0.
    return np.where(noise, np.maximum(1 + isolation, np.nextafter(1, 2)), 1 - found.probabilities_)


def _fit(points: NDArray[np.float64], min_cluster_size: int, min_samples: int) -> HDBSCAN:
    # A class that is one cluster is the usual case; without allow_single_cluster it would be split or all noise.
    return HDBSCAN(
        min_cluster_size=min_cluster_size, min_samples=min_samples, allow_single_cluster=True, copy=True
    ).fit(points)


def _hdbscan_scores(
    evidence: ScorerInputs, *, space: Space, min_cluster_size: int, min_samples: int
) -> NDArray[np.float64]:
    task = partial(suspicion, min_cluster_size=min_cluster_size, min_samples=min_samples)
    return each_class(task, evidence.labels, evidence.points(space), each=evidence.each)


def _hdbscan_clusters(
    evidence: ScorerInputs,
    thresholds: NDArray[np.float64],  # noqa: ARG001
    *,
    space: Space,
    min_cluster_size: int,
    min_samples: int,
) -> NDArray[np.int32]:
    task = partial(_labels, min_cluster_size=min_cluster_size, min_samples=min_samples)
    return each_class(task, evidence.labels, evidence.points(space), each=evidence.each)


def _labels(points: NDArray[np.float64], *, min_cluster_size: int, min_samples: int) -> NDArray[np.int32]:
    return np.asarray(_fit(points, min_cluster_size, min_samples).labels_, dtype=np.int32)


def _hdbscan_reasons(judged: ScoredImages) -> list[str]:
    where, least = SPACE_NAMES[judged.options["space"]], judged.options["min_cluster_size"]
    return [
        f"in no cluster of {least} or more {where}"
        if value > 1
        else f"in a cluster of its class {where} with strength {1 - value:.2f}"
        for value in judged.values.tolist()
    ]


HDBSCAN_SCORER = Scorer(
    values=_hdbscan_scores,
    phrases=_hdbscan_reasons,
    clusters=_hdbscan_clusters,
    least_per_class=("min_cluster_size", "min_samples"),
)
