"""Radii for DBSCAN that nobody has to guess: the knee of the k-distance curve, and a search on planted noise.

Neither looks at test images: the knee needs no truth, and planted noise brings its own.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from pipeline.scoring.base import MapFn, each_class
from pipeline.scoring.density import core_distances, release_radii_by_class
from pipeline.scoring.thresholds import curve_thresholds

PLANTED_SHARE = 0.05
"""Share of the images that `tuned_eps` gives to another class."""

_DRAWS, _SEED = 5, 17


def k_distances(
    points: NDArray[np.float64], labels: NDArray[np.int64], min_samples: int, *, each: MapFn = map
) -> NDArray[np.float64]:
    """(N,) ascending: distance of points (N, d) to their `min_samples`-th nearest of the class, themselves counted."""
    return np.sort(each_class(partial(core_distances, min_samples=min_samples), labels, points, each=each))


def knee(ordered: NDArray[np.float64]) -> float:
    """The value at which an ascending curve (n,) turns from flat to steep.

    Where it lies deepest below the straight line from its first to its last point (Satopää et al.,
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
    """How well radii of DBSCAN find images that were given to another class.

    Attributes:
        eps: that of the highest mean F1.
        f1: that mean, 0 to 1.
        average_precision: mean over the draws, 0 to 1; that of chance is `PLANTED_SHARE`.
    """

    eps: float
    f1: float
    average_precision: float


def search_planted(
    points: NDArray[np.float64], labels: NDArray[np.int64], min_samples: int, *, each: MapFn = map
) -> PlantedSearch | None:
    """Give `PLANTED_SHARE` of the images to another class, five times anew, and see at which eps DBSCAN finds them.

    The images stay where they are: what is tuned is how far from its class an image must be. Labels
    that are wrong already count as right, which lowers all figures and moves no comparison.

    Args:
        points: (N, d); the map or the principal components.
        labels: (N,), two classes at least.

    Returns:
        None if there is no radius to choose: all points lie on one another, or no class has `min_samples`.
    """
    classes = np.unique(labels)
    assert len(classes) > 1
    rng = np.random.default_rng(_SEED)
    n_planted = max(1, round(PLANTED_SHARE * len(labels)))
    radii, planted = [], []
    for _ in range(_DRAWS):
        rows = rng.choice(len(labels), size=n_planted, replace=False)
        moved = np.searchsorted(classes, labels)
        moved[rows] = (moved[rows] + rng.integers(1, len(classes), size=n_planted)) % len(classes)
        radii.append(release_radii_by_class(points, moved, min_samples=min_samples, each=each))
        planted.append(np.isin(np.arange(len(labels)), rows))
    thresholds = curve_thresholds(np.concatenate(radii), n=1000)
    if not len(thresholds):
        return None
    scores = np.mean([_f1(*draw, thresholds) for draw in zip(radii, planted, strict=True)], axis=0)
    precision = [
        average_precision_score(truth, np.nan_to_num(values, posinf=np.finfo(np.float64).max))
        for values, truth in zip(radii, planted, strict=True)
    ]
    best = int(scores.argmax())
    return PlantedSearch(
        eps=float(thresholds[best]), f1=float(scores[best]), average_precision=float(np.mean(precision))
    )


def _f1(values: NDArray[np.float64], truth: NDArray[np.bool_], thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    """F1 of calling values above each of the thresholds planted."""
    found = truth.sum() - np.searchsorted(np.sort(values[truth]), thresholds, side="right")
    called = len(values) - np.searchsorted(np.sort(values), thresholds, side="right")
    return np.asarray(2 * found / (called + truth.sum()))
