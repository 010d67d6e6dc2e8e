"""How far an image is from its nearest of the same class (Ramaswamy, Rastogi and Shim, 2000)."""

from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from pipeline.selection.classes import each_class
from pipeline.selection.evidence import Evidence, Judged, Scorer


def distances(points: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """(n,): distance from each of points (n, d) to its `k`-th nearest other; to the farthest if there are fewer.

    A point that is alone has none: NaN.
    """
    n = len(points)
    if n == 1:
        return np.full(1, np.nan)
    # In fifty dimensions trees look at every point, and slowly.
    search = NearestNeighbors(n_neighbors=min(k, n - 1), algorithm="brute").fit(points)
    found: NDArray[np.float64] = search.kneighbors(return_distance=True)[0][:, -1]
    return found


def _values(evidence: Evidence, *, k: int) -> NDArray[np.float64]:
    """Distance to the `k`-th nearest other of the class, in the unit of the principal components.

    The only image of its class counts as far as the farthest of the others.
    """
    found: NDArray[np.float64] = each_class(
        partial(distances, k=k), evidence.labels, evidence.points("components"), each=evidence.each
    )
    farthest = np.nanmax(found) if not np.isnan(found).all() else 0.0
    return np.where(np.isnan(found), farthest, found)


def _phrases(judged: Judged) -> list[str]:
    k = judged.options["k"]
    return [
        f"{value / threshold:.2g} times as far from its {k}-th nearest of the class as the threshold"
        for value, threshold in judged.pairs
    ]


SCORER = Scorer(values=_values, phrases=_phrases, needs=frozenset({"components"}))
