"""The registry of scorers: one file and one line each.

Not in the package's `__init__`, so that training, which needs `arms` alone, does not depend on them.
"""

from pipeline.selection import (
    centroid,
    confident_learning,
    dbscan,
    el2n,
    ensemble,
    grid,
    hdbscan,
    knn_agreement,
    knn_distance,
    label_odds,
    margin,
    mean_confidence,
    random_draw,
    self_confidence,
    smoothed_confidence,
)
from pipeline.selection.evidence import Scorer

_SINGLE: dict[str, Scorer] = {
    "centroid": centroid.SCORER,
    "confident_learning": confident_learning.SCORER,
    "dbscan": dbscan.SCORER,
    "el2n": el2n.SCORER,
    "grid": grid.SCORER,
    "hdbscan": hdbscan.SCORER,
    "knn_agreement": knn_agreement.SCORER,
    "knn_distance": knn_distance.SCORER,
    "label_odds": label_odds.SCORER,
    "margin": margin.SCORER,
    "mean_confidence": mean_confidence.SCORER,
    "random": random_draw.SCORER,
    "self_confidence": self_confidence.SCORER,
    "smoothed_confidence": smoothed_confidence.SCORER,
}

SCORERS: dict[str, Scorer] = {**_SINGLE, "ensemble": ensemble.ensemble_of(_SINGLE)}
"""By the name that `filter.scorer` gives."""
