"""Confident learning: count labels against confident predictions, and estimate the share of wrong labels.

Northcutt, Jiang and Chuang (2021), Confident Learning: Estimating Uncertainty in Dataset Labels, arXiv 1911.00068.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from pipeline.scoring.predictions import row_blocks

# Probabilities in single precision may miss their own mean by a rounding error.
_ROUNDING = 1e-6
# An image with no probability of a class is never confidently of this class.
_MIN_THRESHOLD = 2 * _ROUNDING


def confident_joint(labels: NDArray[np.int64], probabilities: NDArray[np.float32]) -> NDArray[np.int64]:
    """Count images by label i and confident class j: (C, C).

    An image is confidently of class j if its probability of j is at least the mean probability of j over the images
    labeled j. Of several confident classes the most probable one counts. Images without any are not counted.

    Args:
        labels: (N,), 0 to C - 1.
        probabilities: (N, C); rows sum to 1.
    """
    weights = np.ones(len(labels))
    thresholds = _thresholds(labels, _own(labels, probabilities), weights, probabilities.shape[1])
    return _Candidates(labels, probabilities, thresholds, thresholds).counts(weights, thresholds).astype(np.int64)


def off_diagonal_shares(
    labels: NDArray[np.int64], probabilities: NDArray[np.float32], samples: Iterable[NDArray[np.float64]]
) -> Iterator[float]:
    """Yield for each sample of the images the share of its labels, 0 to 1, that contradicts a confident class.

    The rows of `confident_joint` are scaled to the number of images with each label. The share is what is then off the
    diagonal. Every sample has its own thresholds.

    Args:
        labels: (N,), 0 to C - 1.
        probabilities: (N, C); rows sum to 1.
        samples: how often each image occurs in a sample (N,); iterated twice, with equal results.
    """
    n_classes = probabilities.shape[1]
    own = _own(labels, probabilities)
    # The thresholds of all samples say which few of N x C probabilities can ever count.
    thresholds = np.array([_thresholds(labels, own, weights, n_classes) for weights in samples])
    candidates = _Candidates(labels, probabilities, thresholds.min(axis=0), thresholds.max(axis=0))
    for weights, limits in zip(samples, thresholds, strict=True):
        totals = np.bincount(labels, weights, minlength=n_classes).astype(np.float64)
        yield _off_diagonal(candidates.counts(weights, limits), totals)


def _own(labels: NDArray[np.int64], probabilities: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the probability (N,) of each image's label."""
    return np.asarray(probabilities[np.arange(len(labels)), labels], dtype=np.float64)


def _thresholds(
    labels: NDArray[np.int64], own: NDArray[np.float64], weights: NDArray[np.float64], n_classes: int
) -> NDArray[np.float64]:
    """Return the least probability (C,) of confidence in each class; infinite for a class without images."""
    totals = np.bincount(labels, weights, minlength=n_classes)
    sums = np.bincount(labels, weights * own, minlength=n_classes)
    means = np.divide(sums, totals, out=np.full(n_classes, np.inf), where=totals > 0)
    return np.asarray(np.maximum(means, _MIN_THRESHOLD) - _ROUNDING)


class _Candidates:
    """The probabilities that can count in any sample, by image, the most probable class first.

    They are few of N x C, so that each of many samples costs little.

    Args:
        least, most: (C,) smallest and largest threshold of the samples.
    """

    def __init__(
        self,
        labels: NDArray[np.int64],
        probabilities: NDArray[np.float32],
        least: NDArray[np.float64],
        most: NDArray[np.float64],
    ) -> None:
        self._n_classes = probabilities.shape[1]
        rows, classes, values = [], [], []
        for block in row_blocks(probabilities):
            part = np.asarray(probabilities[block], dtype=np.float64)
            in_block, of_class = np.nonzero(part >= least)
            value = part[in_block, of_class]
            order = np.lexsort((of_class, -value, in_block))
            image, of_class, value = in_block[order], of_class[order], value[order]
            # After a class that is confident in every sample, no less probable one counts.
            certain = value >= most[of_class]
            n_before: NDArray[np.int64] = np.cumsum(certain) - certain
            needed: NDArray[np.bool_] = n_before == n_before[np.searchsorted(image, image)]
            rows.append(image[needed] + block.start)
            classes.append(of_class[needed])
            values.append(value[needed])
        self._rows, self._classes = np.concatenate(rows), np.concatenate(classes)
        self._values = np.concatenate(values)
        self._cells = labels[self._rows] * self._n_classes + self._classes

    def counts(self, weights: NDArray[np.float64], thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the weights of images by label and confident class: (C, C)."""
        confident = np.flatnonzero(self._values >= thresholds[self._classes])
        rows = self._rows[confident]
        first = confident[np.diff(rows, prepend=-1) > 0]
        n_classes = self._n_classes
        counts = np.bincount(self._cells[first], weights[self._rows[first]], minlength=n_classes**2)
        return np.asarray(counts.reshape(n_classes, n_classes), dtype=np.float64)


def _off_diagonal(counts: NDArray[np.float64], totals: NDArray[np.float64]) -> float:
    """Return the share off the diagonal of counts (C, C) whose rows are scaled to `totals` (C,), 0 to 1."""
    confident = counts.sum(axis=1)
    # Of a label without any confident image nothing is known; none of its images counts as wrong.
    wrong = np.divide(confident - counts.diagonal(), confident, out=np.zeros(len(counts)), where=confident > 0)
    return float((wrong * totals).sum() / totals.sum())
