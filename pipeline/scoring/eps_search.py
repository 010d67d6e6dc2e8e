"""Choose the radius of DBSCAN: the knee of the k-distance curve, or a search on planted label noise.

Neither uses test images: the knee needs no true labels, and the search knows which labels it has changed.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from pipeline.scoring.base import each_class
from pipeline.scoring.density import core_distances, release_radii_by_class
from pipeline.scoring.thresholds import curve_thresholds
from pipeline.typing import MapFn

_REPEATS, _SEED = 5, 17


def k_distances(
    points: NDArray[np.float64], labels: NDArray[np.int64], min_samples: int, *, map_fn: MapFn = map
) -> NDArray[np.float64]:
    """Return the distance (N,), ascending, of points (N, d) to their `min_samples`-th nearest of the class.

    Each point counts itself.
    """
    return np.sort(each_class(partial(core_distances, min_samples=min_samples), labels, points, map_fn=map_fn))


def knee(ordered: NDArray[np.float64]) -> float:
    """Return the value at which an ascending curve (n,) turns from flat to steep.

    That is where it lies farthest below the straight line from its first to its last point (Satopää et al.,
    2011, "Finding a kneedle in a haystack"). Above 0 if any value is.
    """
    finite = ordered[np.isfinite(ordered)]
    assert len(finite) > 0
    extent = finite[-1] - finite[0]
    if extent == 0:
        return float(finite[0])
    depth = np.linspace(0, 1, len(finite)) - (finite - finite[0]) / extent
    return float(finite[depth.argmax()]) or float(finite[finite > 0][0])


@dataclass(frozen=True, kw_only=True)
class PlantedSearch:
    """How well DBSCAN finds images that were moved to another class.

    Attributes:
        eps: radius of the highest mean F1.
        f1: that mean, 0 to 1.
        average_precision: mean over the repeats, 0 to 1.
        chance: its expectation for random scores: nearly the planted fraction, and more for few images.
    """

    eps: float
    f1: float
    average_precision: float
    chance: float


def search_planted(
    points: NDArray[np.float64],
    labels: NDArray[np.int64],
    min_samples: int,
    *,
    fraction: float,
    map_fn: MapFn = map,
) -> PlantedSearch | None:
    """Move `fraction` of the images to another class, five times, and find the eps that detects them best.

    Only labels change: the search tunes how far from its class an image must be. Labels that are already
    wrong count as right. That lowers all scores and does not change their order.

    Args:
        points: (N, d); the embedding or the principal components.
        labels: (N,), two classes at least.
        fraction: 0 to 1, the assumed noise: F1 weighs precision and recall at this fraction, so that a larger one
            gives a smaller eps. The labels do not show the true one.

    Returns:
        None if there is no radius to choose: all points coincide, or no class has `min_samples`.
    """
    classes = np.unique(labels)
    assert len(classes) > 1
    rng = np.random.default_rng(_SEED)
    n_planted = max(1, round(fraction * len(labels)))
    radii, planted = [], []
    for _ in range(_REPEATS):
        rows = rng.choice(len(labels), size=n_planted, replace=False)
        moved = np.searchsorted(classes, labels)
        moved[rows] = (moved[rows] + rng.integers(1, len(classes), size=n_planted)) % len(classes)
        radii.append(release_radii_by_class(points, moved, min_samples=min_samples, map_fn=map_fn))
        planted.append(np.isin(np.arange(len(labels)), rows))
    thresholds = curve_thresholds(np.concatenate(radii), n=1000)
    if not len(thresholds):
        return None
    scores = np.mean([_f1(*repeat, thresholds) for repeat in zip(radii, planted, strict=True)], axis=0)
    average_precisions = [
        average_precision_score(truth, np.nan_to_num(values, posinf=np.finfo(np.float64).max))
        for values, truth in zip(radii, planted, strict=True)
    ]
    best = int(scores.argmax())
    return PlantedSearch(
        eps=float(thresholds[best]),
        f1=float(scores[best]),
        average_precision=float(np.mean(average_precisions)),
        chance=expected_average_precision(n_planted, len(labels)),
    )


def expected_average_precision(n_relevant: int, n: int) -> float:
    """Return the mean average precision of `n` items in random order, 2 or more, of which `n_relevant` are relevant.

    Bestgen (2015), Exact Expected Average Precision of the Random Baseline for System Evaluation.
    """
    harmonic = float((1 / np.arange(1, n + 1)).sum())
    return ((n_relevant - 1) / (n - 1) * (n - harmonic) + harmonic) / n


def _f1(values: NDArray[np.float64], truth: NDArray[np.bool_], thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the F1 (t,) of the prediction that values above each of thresholds (t,) are planted."""
    n_detected = truth.sum() - np.searchsorted(np.sort(values[truth]), thresholds, side="right")
    n_predicted = len(values) - np.searchsorted(np.sort(values), thresholds, side="right")
    return np.asarray(2 * n_detected / (n_predicted + truth.sum()))
