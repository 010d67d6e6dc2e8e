"""DBSCAN per class, and the radius at which each point stops being noise.

The noise of DBSCAN (Ester et al., 1996) as a function of its radius eps is known from one
nearest-neighbour query. Let d be the distance, m = min_samples, and c_j the core distance of point
j: that to the m-th nearest point, counting j itself, so that j is a core point exactly if c_j <= eps.
Point i is not noise exactly if some core point j (i itself counts) has d_ij <= eps, hence from

    r_i = min over j of max(d_ij, c_j)

on: its release radius, and i is noise exactly if eps < r_i. The minimum needs a look at i and its
m - 1 nearest others only: j = i gives r_i <= c_i, and any other j has d_ij >= c_i, hence
max(d_ij, c_j) >= c_i, and cannot do better.
"""

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN
from sklearn.neighbors import NearestNeighbors

from pipeline.selection.evidence import Evidence

# One way of computing distances for radii and clusters. Right for the two dimensions of a map;
# scikit-learn's brute force would also round differently.
_ALGORITHM = "kd_tree"

ROUNDING = 1e-9
"""Distances closer than this, relative to their size, count as equal: far above rounding errors."""


def release_radii(points: NDArray[np.float64], min_samples: int) -> NDArray[np.float64]:
    """Smallest eps, in the unit of points (n, d), at which DBSCAN does not call each of them noise.

    (n,); 0 for points with min_samples - 1 duplicates or more, infinite if n < min_samples.
    """
    n = len(points)
    if n < min_samples:
        return np.full(n, np.inf)
    search = NearestNeighbors(n_neighbors=min_samples, algorithm=_ALGORITHM).fit(points)
    # Fitted points are queried as if new, so each counts itself, at distance 0.
    distances, neighbours = search.kneighbors(points)
    core = distances[:, -1]
    through_neighbours = np.maximum(distances, core[neighbours]).min(axis=1)
    radii: NDArray[np.float64] = np.minimum(core, through_neighbours)
    return radii


def cluster(points: NDArray[np.float64], eps: float, min_samples: int) -> NDArray[np.int32]:
    """Labels (n,) of DBSCAN on points (n, d): clusters from 0, noise -1."""
    found = DBSCAN(eps=eps, min_samples=min_samples, algorithm=_ALGORITHM).fit(points)
    return np.asarray(found.labels_, dtype=np.int32)


def release_radii_by_class(evidence: Evidence, *, min_samples: int) -> NDArray[np.float64]:
    """`release_radii` (N,) of each class among its own."""
    radii = np.empty(len(evidence.labels))
    for rows in _classes(evidence):
        radii[rows] = release_radii(evidence.coordinates[rows], min_samples)
    return radii


def cluster_by_class(evidence: Evidence, eps: float, *, min_samples: int) -> NDArray[np.int32]:
    """`cluster` (N,) of each class among its own: numbers start anew in every class."""
    clusters = np.empty(len(evidence.labels), dtype=np.int32)
    for rows in _classes(evidence):
        clusters[rows] = cluster(evidence.coordinates[rows], eps, min_samples)
    return clusters


def settle(radii: NDArray[np.float64], eps: float, noise: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Release radii (N,) that agree with DBSCAN's own decision `noise` (N,) at `eps`.

    The two differ where rounding decides: at an eps that equals a distance. There, and nowhere
    else, a radius moves by as much as `ROUNDING` to the side on which DBSCAN put the point.
    """
    settled = np.where(noise, np.maximum(radii, eps * (1 + ROUNDING)), np.minimum(radii, eps))
    finite = np.isfinite(radii)
    assert np.allclose(settled[finite], radii[finite], rtol=2 * ROUNDING, atol=0), "DBSCAN's noise is not as predicted"
    return settled


def _classes(evidence: Evidence) -> list[NDArray[np.int64]]:
    return [np.flatnonzero(evidence.labels == label) for label in np.unique(evidence.labels)]
