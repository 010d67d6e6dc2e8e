"""What is compared: the project's scorers with their options, and what others would do with the same arrays."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.filter import NEEDS_TRAINING_CONFIDENCE
from pipeline.errors import InputError
from pipeline.reduction.neighbors import exact_neighbors
from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.registry import SCORERS

_DBSCAN = {"name": "dbscan", "space": "embedding", "min_samples": 5}
_HDBSCAN = {"name": "hdbscan", "space": "embedding", "min_cluster_size": 20, "min_samples": 5}
_KNN = {"name": "knn_agreement", "k": 25}
_CONFIDENCE = {"name": "self_confidence"}
_MARGIN = {"name": "margin"}

CHOICES: Mapping[str, Mapping[str, Any]] = {
    "dbscan_map": _DBSCAN,
    "dbscan_components": {**_DBSCAN, "space": "components"},
    "hdbscan_map": _HDBSCAN,
    "knn_agreement": _KNN,
    "knn_distance": {"name": "knn_distance", "k": 10},
    "centroid": {"name": "centroid"},
    "self_confidence": _CONFIDENCE,
    "smoothed_confidence": {"name": "smoothed_confidence", "k": 25},
    "mean_confidence": {"name": "mean_confidence"},
    "label_odds": {"name": "label_odds"},
    "margin": _MARGIN,
    "el2n": {"name": "el2n"},
    "confident_learning": {"name": "confident_learning"},
    "confidence_and_knn": {"name": "ensemble", "scorers": [_CONFIDENCE, _KNN]},
    "margin_and_knn": {"name": "ensemble", "scorers": [_MARGIN, _KNN]},
    "confidence_and_dbscan": {"name": "ensemble", "scorers": [_CONFIDENCE, _DBSCAN]},
    "confidence_knn_and_dbscan": {"name": "ensemble", "scorers": [_CONFIDENCE, _KNN, _DBSCAN]},
    "grid": {"name": "grid", "cells": 20, "seed": 0},
    "random": {"name": "random", "seed": 0},
}
"""`filter.scorer` of each."""

K_VOTING = 25

Comparison = Callable[[ScorerInputs, NDArray[np.float32]], NDArray[np.float64]]
"""From the evidence and features (N, D), suspicion (N,), higher = more suspect."""


def cleanlab_self_confidence(evidence: ScorerInputs, _: NDArray[np.float32]) -> NDArray[np.float64]:
    """One less cleanlab's label quality (Northcutt, Jiang and Chuang 2021, Confident Learning)."""
    from cleanlab.rank import get_label_quality_scores

    quality = get_label_quality_scores(evidence.labels, _probabilities(evidence), method="self_confidence")
    return 1.0 - np.asarray(quality, dtype=np.float64)


def cleanlab_issues(evidence: ScorerInputs, _: NDArray[np.float32]) -> NDArray[np.float64]:
    """The issues that cleanlab finds, in its own order; all others are alike."""
    from cleanlab.filter import find_label_issues

    ranked = find_label_issues(
        evidence.labels, _probabilities(evidence), return_indices_ranked_by="self_confidence", n_jobs=1
    )
    suspicion = np.zeros(len(evidence.labels))
    suspicion[ranked] = np.arange(len(ranked), 0, -1)
    return suspicion


def knn_vote(evidence: ScorerInputs, features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Share of the 25 nearest others in feature space (Euclidean, brute force) that have another label."""
    neighbours = exact_neighbors(features, np.arange(len(features)), K_VOTING)
    return np.asarray((evidence.labels[neighbours] != evidence.labels[:, None]).mean(axis=1))


OTHERS: Mapping[str, Comparison] = {
    "cleanlab_self_confidence": cleanlab_self_confidence,
    "cleanlab_issues": cleanlab_issues,
    "knn_vote": knn_vote,
}

COMPARISONS = (*OTHERS, "dbscan_map")
"""What the default is held against: the last is the paper's, DBSCAN per class on the joint map, each image
ranked by the radius that releases it."""

NAMES = (*CHOICES, *OTHERS)


def needs_cleanlab(name: str) -> bool:
    """Whether it calls the optional package."""
    return name.startswith("cleanlab") or name == "confident_learning"


def scorers_of(named: Sequence[str] | None, *, frozen: bool) -> tuple[str, ...]:
    """Those that judge a case: the named ones, or all that find what they need. A fitted head had no training."""
    return tuple(named) if named else tuple(name for name in NAMES if not (frozen and _reads_training(name)))


def check_names(names: tuple[str, ...], default: str, *, neighbours: int, frozen: bool) -> None:
    """Refuse scorers that cannot run here, and a default that is not among them, before anything is trained.

    Args:
        neighbours: `reduce.n_neighbors`.
        frozen: whether some extractor is a fitted head alone.
    """
    if default not in names:
        raise InputError(f"--default: {default} is not among --scorers {' '.join(names)}; add it or choose one")
    missing = [name for name in names if needs_cleanlab(name)] if find_spec("cleanlab") is None else []
    if missing:
        raise InputError(
            f"--scorers: {missing[0]} needs cleanlab; pip install -e '.[cleanlab]', or name the others alone"
        )
    for name in names:
        if frozen and _reads_training(name):
            raise InputError(f"--scorers: {name} reads a training that frozen has not; name others")
        asked = max(
            (scorer["k"] for scorer in _members(name) if "neighbors" in SCORERS[scorer["name"]].needs), default=0
        )
        if asked > neighbours:
            raise InputError(
                f"--scorers: {name} looks at {asked} neighbours, and reduce.n_neighbors is {neighbours}; raise it, or "
                "name the others alone"
            )


def _reads_training(name: str) -> bool:
    return any(scorer["name"] in NEEDS_TRAINING_CONFIDENCE for scorer in _members(name))


def _members(name: str) -> Iterator[Mapping[str, Any]]:
    if name in CHOICES:
        yield from CHOICES[name].get("scorers", [CHOICES[name]])


def _probabilities(evidence: ScorerInputs) -> NDArray[np.float64]:
    return np.asarray(evidence.probabilities, dtype=np.float64)
