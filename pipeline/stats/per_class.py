"""Accuracy by class and of the worst class, and a bootstrap over filter draws, seeds and test images.

Accuracies are 0 to 1, differences -1 to 1. `correct` holds which test images a run classified correctly, as a row of
data/train/<study>.correct.npy does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.stats.comparisons import Comparison, in_points
from pipeline.stats.estimates import Estimate, rounding_sd
from pipeline.stats.replicates import Pairs, replicate_estimate, shared_rounding

Values = dict[str, Any]

# Numbers that are in memory at once for the images' weights.
_CHUNK = 2**22

ArmPair = tuple[NDArray[np.bool_], NDArray[np.bool_]]
"""Which images each run classified correctly at one setting: the treated arm's (draws, seeds, images), and the
control's, of the same shape, or (1, seeds, images) for control runs that all draws share."""


@dataclass(frozen=True, kw_only=True)
class ClassDifferences:
    """Treated - control, -1 to 1, each with an interval that is not adjusted for the number of classes.

    Attributes:
        classes: labels, ascending.
        estimates: one for each of `classes`.
        worst: of the worst class of each run, which may differ between runs.
    """

    classes: tuple[int, ...]
    estimates: tuple[Estimate, ...]
    worst: Estimate


def class_accuracies(correct: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
    """Return the share of each class's images that are correct (..., classes), in ascending order of labels.

    Args:
        correct: bool (..., images).
        labels: int (images,), of the test images.

    Raises:
        ValueError: no images, not bool, or shapes that do not fit.
    """
    rows, classes = np.asarray(correct), np.asarray(labels)
    if rows.dtype != np.bool_ or classes.ndim != 1 or rows.shape[-1:] != classes.shape or not classes.size:
        raise ValueError(
            f"expected bool (..., images) and labels (images,), got {rows.dtype} {rows.shape} and {classes.shape}"
        )
    order = np.argsort(classes, kind="stable")
    starts, counts = np.unique(classes[order], return_index=True, return_counts=True)[1:]
    return np.asarray(np.add.reduceat(rows[..., order], starts, axis=-1) / counts)


def worst_class_accuracy(correct: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
    """Return the smallest of a run's class accuracies (...).

    Chance makes the smallest of many lower than the true one: more so with few images per class, and equally in arms
    that are tested on the same images. Compare it only between such arms.
    """
    return np.asarray(class_accuracies(correct, labels).min(axis=-1))


def class_differences(settings: Sequence[ArmPair], labels: ArrayLike, confidence: float) -> ClassDifferences:
    """Return paired differences of every class and of the worst one, as means over settings.

    A class's accuracy is a count of its images. The variance of rounding to such counts is added to each variance; the
    worst class has that of the smallest one. Without it, a class that all runs get right would have no interval.

    Args:
        settings: one pair of arms for each, of equal shapes.
        labels: int (images,).
        confidence: of each interval, in (0, 1).

    Raises:
        ValueError: as `class_accuracies`, or arms that do not pair.
    """
    check_pairs(settings)
    of_classes, of_worst = (
        np.mean([measure(treated, labels) - measure(control, labels) for treated, control in settings], axis=0)
        for measure in (class_accuracies, worst_class_accuracy)
    )
    classes, counts = np.unique(np.asarray(labels), return_counts=True)
    treated, control = settings[0]
    factor = shared_rounding(len(treated)) if len(control) < len(treated) else 1.0
    roundings = [factor * rounding_sd(1 / count) * (2 / len(settings)) ** 0.5 for count in counts]
    tables = zip(np.moveaxis(of_classes, -1, 0), roundings, strict=True)
    return ClassDifferences(
        classes=tuple(classes.tolist()),
        estimates=tuple(replicate_estimate(table, confidence, rounding=rounding) for table, rounding in tables),
        worst=replicate_estimate(of_worst, confidence, rounding=max(roundings)),
    )


def check_pairs(settings: Sequence[ArmPair]) -> None:
    """Check that arms are (draws, seeds, images), and the control of that shape or (1, seeds, images).

    Raises:
        ValueError: no settings, or shapes that do not pair.
    """
    shapes = {(treated.shape, control.shape) for treated, control in settings}
    treated, control = shapes.pop() if len(shapes) == 1 else ((), ())
    if len(treated) != 3 or 0 in treated or control not in (treated, (1, *treated[1:])):
        raise ValueError(
            "expected (draws, seeds, images), and a control of that shape or with one draw, alike in all settings, got "
            f"{[(treated.shape, control.shape) for treated, control in settings]}"
        )


def correctness_differences(settings: Sequence[ArmPair]) -> NDArray[np.float32]:
    """Return treated - control for every run and test image (draws, seeds, images), -1 to 1: the mean over settings.

    Args:
        settings: one pair of arms for each, of equal shapes.

    Raises:
        ValueError: not bool, or shapes that do not pair.
    """
    if any(arm.dtype != np.bool_ for pair in settings for arm in pair):
        raise ValueError(f"expected bool, got {[(treated.dtype, control.dtype) for treated, control in settings]}")
    check_pairs(settings)
    total = np.zeros(settings[0][0].shape, dtype=np.int32)
    for treated, control in settings:
        total += treated
        total -= control
    return (total / len(settings)).astype(np.float32)


def hierarchical_bootstrap(
    differences: ArrayLike, *, confidence: float, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Return the percentile interval of the mean difference in accuracy over draws, seeds and test images.

    Draws, seeds and images are resampled with replacement, independently. Every run is tested on the same images, and
    seeds pair across draws, so that the factors cross, and images are not nested in runs. This is the pigeonhole
    bootstrap (Owen 2007, doi:10.1214/07-AOAS122). It counts the noise of single run-and-image pairs up to three times,
    which makes the interval wider. With one draw, the interval is conditional on it.

    Percentiles of few seeds are too narrow: if seeds vary most, a 95 % interval covers the truth 74 times in 100
    with 3 of them, 86 with 5 and 92 with 10. Student's interval over seeds is as short if the choice of test
    images matters most (benchmarks/statistics_error_rates.py). The t interval decides; this one adds the images.

    Args:
        differences: (draws, seeds, images), -1 to 1: `correctness_differences`.
        confidence: nominal coverage, in (0, 1).
        resamples: number of resamples.
        seed: of the resampling.

    Returns:
        Both ends, in accuracy (-1 to 1).

    Raises:
        ValueError: no values, not three-dimensional, or a confidence out of range.
    """
    values = np.asarray(differences)
    if values.ndim != 3 or not values.size or not 0 < confidence < 1:
        raise ValueError(
            f"expected (draws, seeds, images) and a confidence in (0, 1), got {values.shape} and {confidence}"
        )
    draws, seeds, images = values.shape
    rng = np.random.default_rng(seed)
    runs = values.reshape(draws * seeds, images).astype(np.float64)
    means = []
    at_once = max(1, _CHUNK // images)
    for start in range(0, resamples, at_once):
        size = min(at_once, resamples - start)
        of_draws, of_seeds, of_images = (_weights(rng, size, n) for n in values.shape)
        of_runs = (of_draws[:, :, None] * of_seeds[:, None, :]).reshape(size, draws * seeds)
        means.append(np.einsum("bi,bi->b", of_runs @ runs, of_images))
    low, high = np.quantile(np.concatenate(means), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _weights(rng: np.random.Generator, size: int, n: int) -> NDArray[np.float64]:
    """Return bootstrap weights (size, n): how often each of n is sampled, as a share; rows sum to 1."""
    rows = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
    return np.bincount(rows.ravel(), minlength=size * n).reshape(size, n) / n


def image_values(
    comparison: Comparison,
    correct: NDArray[np.bool_],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
    confidence: float,
) -> Values | None:
    """Return a comparison by class, of the worst class, and over images as a sample, as plain values.

    Covers the settings of the pooled verdict; None without one.

    Args:
        correct: (runs, images), rows as the study's runs.
        labels: (images,), indices into `class_names`.
        confidence: of the intervals, in (0, 1).

    Returns:
        `bootstrap`, an interval in percentage points for other draws, seeds and test images; `classes` and `worst`,
        each with the accuracies of both arms (0 to 1) and the paired difference in percentage points.
    """
    settings = [_arms(pairs, correct, shared=comparison.shared_control) for pairs in comparison.complete]
    if not settings:
        return None
    low, high = hierarchical_bootstrap(correctness_differences(settings), confidence=confidence)
    by_class = class_differences(settings, labels, confidence)
    treated, control = (np.mean([_class_means(pair[arm], labels) for pair in settings], axis=0) for arm in (0, 1))
    return {
        "n_images": len(labels),
        "bootstrap": {"low": 100 * low, "high": 100 * high},
        "classes": [
            {"class": class_names[label], **_row(treated[index], control[index], by_class.estimates[index])}
            for index, label in enumerate(by_class.classes)
        ],
        "worst": _row(treated[-1], control[-1], by_class.worst),
    }


def _arms(pairs: Pairs, correct: NDArray[np.bool_], *, shared: bool) -> ArmPair:
    return correct[pairs.treated], correct[pairs.control[:1] if shared else pairs.control]


def _class_means(correct: NDArray[np.bool_], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return mean accuracies over runs (classes + 1,): of each class, and of each run's worst."""
    worst = worst_class_accuracy(correct, labels).mean()
    return np.append(class_accuracies(correct, labels).mean(axis=(0, 1)), worst)


def _row(treated: float, control: float, difference: Estimate) -> Values:
    return {"treated": float(treated), "control": float(control), "estimate": in_points(difference)}
