"""How far an image is from the mean of its class."""

import numpy as np
from numpy.typing import NDArray

from pipeline.selection.classes import each_class
from pipeline.selection.evidence import Evidence, Judged, Scorer


def distances(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,): Euclidean distance of each of points (n, d) from their mean."""
    return np.asarray(np.linalg.norm(points - points.mean(axis=0), axis=1))


def _values(evidence: Evidence) -> NDArray[np.float64]:
    """In the unit of the principal components."""
    return each_class(distances, evidence.labels, evidence.points("components"), each=evidence.each)


def _phrases(judged: Judged) -> list[str]:
    return [
        f"{value / threshold:.2g} times as far from the mean of its class as the threshold"
        for value, threshold in judged.pairs
    ]


SCORER = Scorer(values=_values, phrases=_phrases, needs=frozenset({"components"}))
