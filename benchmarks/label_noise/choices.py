"""The scorers to compare: the project's with their options, and other methods on the same arrays."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.config.filter import NEEDS_TRAINING
from pipeline.errors import InputError
from pipeline.reduction.neighbors import exact_neighbors
from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.registry import SCORERS, needs_with_members

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
    "aum": {"name": "aum"},
    "forgetting": {"name": "forgetting"},
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
"""Name -> `filter.scorer`."""

K_VOTING = 25

Comparison = Callable[[ScorerInputs, NDArray[np.float32]], NDArray[np.float64]]
"""Function from scorer inputs and features (N, D) to suspicion (N,), higher = more suspect."""


def cleanlab_self_confidence(inputs: ScorerInputs, _: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return 1 - cleanlab's label quality (Northcutt, Jiang and Chuang 2021, Confident Learning)."""
    return _cleanlab_doubt(inputs, "self_confidence")


def cleanlab_issues(inputs: ScorerInputs, _: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the rank of the issues that cleanlab finds, in its order; 0 for all other images."""
    from cleanlab.filter import find_label_issues

    ranked = find_label_issues(
        inputs.labels, _probabilities(inputs), return_indices_ranked_by="self_confidence", n_jobs=1
    )
    suspicion = np.zeros(len(inputs.labels))
    suspicion[ranked] = np.arange(len(ranked), 0, -1)
    return suspicion


def cleanlab_normalized_margin(inputs: ScorerInputs, _: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return 1 - cleanlab's label quality by the normalized margin."""
    return _cleanlab_doubt(inputs, "normalized_margin")


def cleanlab_weighted_entropy(inputs: ScorerInputs, _: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return 1 - cleanlab's label quality by the entropy, weighted by the confidence in the label."""
    return _cleanlab_doubt(inputs, "confidence_weighted_entropy")


def cleanlab_outlier(_: ScorerInputs, features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return 1 - cleanlab's score of how typical the features of an image are, by its distances to 10 neighbors."""
    from cleanlab.outlier import OutOfDistribution

    typical = OutOfDistribution({"k": 10}).fit_score(features=np.asarray(features), verbose=False)
    return 1.0 - np.asarray(typical, dtype=np.float64)


def cleanlab_unsure(inputs: ScorerInputs, _: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return 1 - cleanlab's score of how typical an image is by its probabilities: adjusted, and their entropy."""
    from cleanlab.outlier import OutOfDistribution

    typical = OutOfDistribution().fit_score(pred_probs=_probabilities(inputs), labels=inputs.labels, verbose=False)
    return 1.0 - np.asarray(typical, dtype=np.float64)


def knn_vote(inputs: ScorerInputs, features: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the share of the 25 nearest images in feature space (Euclidean, exact) with another label."""
    neighbors = exact_neighbors(features, np.arange(len(features)), K_VOTING)
    return np.asarray((inputs.labels[neighbors] != inputs.labels[:, None]).mean(axis=1))


OTHERS: Mapping[str, Comparison] = {
    "cleanlab_self_confidence": cleanlab_self_confidence,
    "cleanlab_issues": cleanlab_issues,
    "cleanlab_normalized_margin": cleanlab_normalized_margin,
    "cleanlab_weighted_entropy": cleanlab_weighted_entropy,
    "cleanlab_outlier": cleanlab_outlier,
    "cleanlab_unsure": cleanlab_unsure,
    "knn_vote": knn_vote,
}

COMPARISONS = ("cleanlab_self_confidence", "cleanlab_issues", "knn_vote", "dbscan_map")
"""Methods that the default is compared with.

The last is the paper's: DBSCAN per class on the joint embedding, with each image ranked by its release radius.
"""

NAMES = (*CHOICES, *OTHERS)


def needs_cleanlab(name: str) -> bool:
    """Return whether the scorer calls cleanlab, an optional package."""
    return name.startswith("cleanlab") or name == "confident_learning"


def select_scorers(named: Sequence[str] | None, *, frozen: bool, predictions_only: bool = False) -> tuple[str, ...]:
    """Return the named scorers, or by default all whose inputs exist.

    Args:
        frozen: whether the extractor is frozen, without a record of training.
        predictions_only: whether the stage `reduce` does not run.
    """
    if named:
        return tuple(named)
    without = [_reads_training] * frozen + [reads_reduced] * predictions_only
    return tuple(name for name in NAMES if not any(reads(name) for reads in without))


def check_names(
    names: tuple[str, ...], default: str, *, n_neighbors: int, frozen: bool, predictions_only: bool = False
) -> None:
    """Check before training that all scorers can run, and that the default is among them.

    Args:
        n_neighbors: `reduce.n_neighbors`.
        frozen: whether some extractor is frozen, with a fitted head.
        predictions_only: whether the stage `reduce` does not run.

    Raises:
        InputError: a scorer cannot run, or the default is not among them.
    """
    if default not in names:
        raise InputError(
            f"--default: {default} is not among --scorers {' '.join(names)}; add it, or choose one of them"
        )
    missing = [name for name in names if needs_cleanlab(name)] if find_spec("cleanlab") is None else []
    if missing:
        raise InputError(f"--scorers: {missing[0]} needs cleanlab; pip install -e '.[cleanlab]', or omit it")
    for name in names:
        if frozen and _reads_training(name):
            raise InputError(f"--scorers: {name} reads training records, which frozen has none of; omit it")
        if predictions_only and reads_reduced(name):
            raise InputError(f"--scorers: {name} reads what reduce writes; omit it, or --predictions-only")
        required = max(
            (scorer["k"] for scorer in _members(name) if "neighbors" in SCORERS[scorer["name"]].needs), default=0
        )
        if required > n_neighbors:
            raise InputError(
                f"--scorers: {name} needs {required} neighbors, and reduce.n_neighbors is {n_neighbors}; increase it, "
                "or omit the scorer"
            )


def _reads_training(name: str) -> bool:
    return any(scorer["name"] in NEEDS_TRAINING for scorer in _members(name))


def reads_reduced(name: str) -> bool:
    """Return whether a scorer reads components, the embedding or neighbors."""
    needs = needs_with_members(CHOICES[name]) if name in CHOICES else set()
    return not needs.isdisjoint({"components", "embedding", "neighbors"})


def _members(name: str) -> Iterator[Mapping[str, Any]]:
    if name in CHOICES:
        yield from CHOICES[name].get("scorers", [CHOICES[name]])


def _cleanlab_doubt(inputs: ScorerInputs, method: str) -> NDArray[np.float64]:
    from cleanlab.rank import get_label_quality_scores

    quality = get_label_quality_scores(inputs.labels, _probabilities(inputs), method=method)
    return 1.0 - np.asarray(quality, dtype=np.float64)


def _probabilities(inputs: ScorerInputs) -> NDArray[np.float64]:
    return np.asarray(inputs.probabilities, dtype=np.float64)
