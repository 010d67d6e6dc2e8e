"""Accuracy by class, and of the worst class, with paired differences.

Accuracies are 0 to 1, differences -1 to 1. `correct` says which test images a run classified correctly, as a row of
data/train/<study>.correct.npy does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.stats.estimates import Estimate
from pipeline.stats.levels import level_estimate
from pipeline.stats.student import rounding_sd

ArmPair = tuple[NDArray[np.bool_], NDArray[np.bool_]]
"""Which images each run classified correctly at one setting: the treated arm's (draws, seeds, images), and the
control's, of the same shape, or (1, seeds, images) for runs that all draws are compared with."""


@dataclass(frozen=True, kw_only=True)
class ClassDifferences:
    """Treated - control, -1 to 1, each with its own interval: not adjusted for the number of classes.

    Attributes:
        classes: labels, ascending.
        estimates: one for each of `classes`.
        worst: of the worst class of each run, which need not be the same one.
    """

    classes: tuple[int, ...]
    estimates: tuple[Estimate, ...]
    worst: Estimate


def class_accuracies(correct: ArrayLike, labels: ArrayLike) -> NDArray[np.float64]:
    """Share of each class's images that are correct, (..., classes), in ascending order of the labels found.

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
    """The least of a run's class accuracies, (...).

    Chance alone makes the least of many lower than the true one: more so with few images a class, and alike in arms
    that are tested on the same images. Compare it between such arms only.
    """
    return np.asarray(class_accuracies(correct, labels).min(axis=-1))


def class_differences(settings: Sequence[ArmPair], labels: ArrayLike, confidence: float) -> ClassDifferences:
    """Paired differences of every class and of the worst one, means over settings.

    A class's accuracy is a count of its images: what rounding to such counts varies is added to each variance, for the
    worst class that of the smallest one. Without it, runs that all get a class right would leave no interval.

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
    blurs = [rounding_sd(1 / count) * (2 / len(settings)) ** 0.5 for count in counts]
    each = zip(np.moveaxis(of_classes, -1, 0), blurs, strict=True)
    return ClassDifferences(
        classes=tuple(classes.tolist()),
        estimates=tuple(level_estimate(table, confidence, rounding=blur) for table, blur in each),
        worst=level_estimate(of_worst, confidence, rounding=max(blurs)),
    )


def check_pairs(settings: Sequence[ArmPair]) -> None:
    """See that arms are (draws, seeds, images), the control of that shape or (1, seeds, images).

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
