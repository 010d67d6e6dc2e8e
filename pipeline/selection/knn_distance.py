"""How far an image is from its nearest of the same class (Ramaswamy, Rastogi and Shim, 2000)."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from pipeline.selection.classes import each_class
from pipeline.selection.dbscan import core_distances
from pipeline.selection.evidence import Evidence, Judged, Scorer


def distances(points: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """(n,): distance from each of points (n, d) to its `k`-th nearest other; to the farthest if there are fewer.

    A point that is alone is infinitely far from all others.
    """
    n = len(points)
    return core_distances(points, min(k + 1, n)) if n > 1 else np.full(n, np.inf)


def _values(evidence: Evidence, *, k: int) -> NDArray[np.float64]:
    """Distance to the `k`-th nearest other of the class, in the unit of the principal components."""
    return each_class(partial(distances, k=k), evidence.labels, evidence.points("components"), each=evidence.each)


def _phrases(judged: Judged) -> list[str]:
    k = judged.options["k"]
    return [
        f"{value / threshold:.2g} times as far from its {k}-th nearest of the class as the threshold"
        for value, threshold in judged.pairs
    ]


SCORER = Scorer(values=_values, phrases=_phrases, needs=frozenset({"components"}))
