"""What single test images say of a comparison: by class, of the worst class, and with the images as a sample too."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.stats.bootstrap import correctness_differences, hierarchical_bootstrap
from pipeline.stats.comparison_values import in_points
from pipeline.stats.comparisons import Comparison
from pipeline.stats.estimates import Estimate
from pipeline.stats.pairs import Pairs
from pipeline.stats.per_class import ArmPair, class_accuracies, class_differences, worst_class_accuracy

Values = dict[str, Any]


def image_values(
    comparison: Comparison,
    correct: NDArray[np.bool_],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
    confidence: float,
) -> Values | None:
    """Over the settings of the pooled verdict, as plain values; None where it has none.

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
    treated, control = (np.mean([_of_classes(pair[arm], labels) for pair in settings], axis=0) for arm in (0, 1))
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


def _of_classes(correct: NDArray[np.bool_], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean accuracies over runs (classes + 1,): of each class, and of each run's worst."""
    worst = worst_class_accuracy(correct, labels).mean()
    return np.append(class_accuracies(correct, labels).mean(axis=(0, 1)), worst)


def _row(treated: float, control: float, difference: Estimate) -> Values:
    return {"treated": float(treated), "control": float(control), "estimate": in_points(difference)}
