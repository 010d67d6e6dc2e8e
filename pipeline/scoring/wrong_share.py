"""Estimate the share of wrong labels from class probabilities, by confident learning.

Labels are counted against confident predictions: Northcutt, Jiang and Chuang (2021), Confident Learning: Estimating
Uncertainty in Dataset Labels, arXiv 1911.00068.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import rankdata

from pipeline.scoring.predictions import predicted_classes, row_slices

# Probabilities in single precision may miss their own mean by a rounding error. Both values are cleanlab's.
_ROUNDING = 1e-6
# An image with no probability of a class is never confidently of this class.
_MIN_THRESHOLD = 2 * _ROUNDING

CONFIDENCE = 0.95
RESAMPLES = 200

_BINS = 40


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
        for block in row_slices(probabilities):
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
    # Nothing is known about a label without any confident image; none of its images counts as wrong.
    wrong = np.divide(confident - counts.diagonal(), confident, out=np.zeros(len(counts)), where=confident > 0)
    return float((wrong * totals).sum() / totals.sum())


@dataclass(frozen=True, kw_only=True)
class ShareInterval:
    """A share, 0 to 1, with the ends of its interval."""

    share: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class WrongShare:
    """Two estimates of the share of wrong labels among N images, with intervals of the bootstrap over images.

    The intervals cover the choice of the images, given the network. They do not cover its training, nor a violation of
    what an estimate assumes.

    Attributes:
        extrapolated: the share of labels that the network contradicts where it is most confident. It assumes that
            the images of which the network is sure have as many wrong labels as the others. It is too low if people
            mislabel mainly ambiguous images.
        confident_joint: the share that contradicts a confident class (Northcutt et al. 2021). Confident errors of
            the network count as wrong labels: it is too high if the network confuses classes.
        confidence: of the intervals, 0 to 1.
        resamples: number of bootstrap samples.
        seed: of the bootstrap.
    """

    extrapolated: ShareInterval
    confident_joint: ShareInterval
    confidence: float = CONFIDENCE
    resamples: int = RESAMPLES
    seed: int

    def __str__(self) -> str:
        """Return "an estimated 9.8 % of the labels are wrong (95 % interval over images 8.2 to 11.5 %; ...)"."""
        best, joint = self.extrapolated, self.confident_joint
        return (
            f"an estimated {100 * best.share:.1f} % of the labels are wrong ({100 * self.confidence:g} % interval "
            f"over images {100 * best.low:.1f} to {100 * best.high:.1f} %; {100 * joint.share:.1f} % by the confident "
            "joint)"
        )


def estimate_wrong_share(labels: NDArray[np.int64], probabilities: NDArray[np.float32], *, seed: int = 0) -> WrongShare:
    """Estimate which share of the labels is wrong.

    The network contradicts a label because the label is wrong or because the image is hard. Hard images are those of
    which it is less confident. So the estimate is the share of contradicted labels, as a function of the rank of
    confidence within the predicted class, at the most confident end. The function is fitted by least squares among
    those that rise, and rise faster with less confidence (monotone and convex). Its only parameter is the number
    of bins.

    Args:
        labels: (N,), 0 to C - 1, at least two different ones.
        probabilities: (N, C); rows sum to 1. Out of fold: a network that has memorized its labels contradicts none.
        seed: of the bootstrap.
    """
    samples = _Samples(len(labels), seed)
    predicted, confidence = predicted_classes(labels, probabilities)
    curve = _ContradictionCurve(predicted != labels, _confidence_ranks(predicted, confidence))
    return WrongShare(
        extrapolated=_interval([curve.intercept(weights) for weights in samples]),
        confident_joint=_interval(list(off_diagonal_shares(labels, probabilities, samples))),
        seed=seed,
    )


@dataclass(frozen=True)
class _Samples:
    """How often each of `n` images occurs (n,): once in the data, then in each bootstrap sample."""

    n: int
    seed: int

    def __iter__(self) -> Iterator[NDArray[np.float64]]:
        yield np.ones(self.n)
        rng = np.random.default_rng(self.seed)
        for _ in range(RESAMPLES):
            yield np.bincount(rng.integers(self.n, size=self.n), minlength=self.n).astype(np.float64)


def _interval(shares: list[float]) -> ShareInterval:
    """Return the first share with the interval of the others."""
    share, *resampled = shares
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail]).tolist()
    # All samples of a skewed bootstrap may lie on one side of the estimate.
    return ShareInterval(share=share, low=min(low, share), high=max(high, share))


def _confidence_ranks(predicted: NDArray[np.int64], confidence: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the rank (N,) of each image within its predicted class, above 0 for the most confident one, below 1."""
    ranks = np.empty(len(predicted))
    for label in np.unique(predicted):
        rows = np.flatnonzero(predicted == label)
        ranks[rows] = (rankdata(-confidence[rows]) - 0.5) / len(rows)
    return ranks


class _ContradictionCurve:
    """The share of contradicted labels as a monotone convex function of the rank of confidence, 0 to 1."""

    def __init__(self, contradicted: NDArray[np.bool_], ranks: NDArray[np.float64]) -> None:
        self._contradicted = contradicted.astype(np.float64)
        self._bins = np.minimum((ranks * _BINS).astype(np.int64), _BINS - 1)
        edges = np.arange(_BINS) / _BINS
        centers = edges + 0.5 / _BINS
        # A function of these, with coefficients of 0 or more, is nonnegative, monotone and convex.
        self._basis = np.column_stack([np.ones(_BINS), np.maximum(centers[:, None] - edges, 0)])

    def intercept(self, weights: NDArray[np.float64]) -> float:
        """Return the function at rank 0, 0 to 1, from images that occur as often as `weights` (N,) says."""
        counts = np.bincount(self._bins, weights, minlength=_BINS)
        sums = np.bincount(self._bins, weights * self._contradicted, minlength=_BINS)
        # Least squares of the shares, weighted by the counts; an empty bin has no equation.
        root = np.sqrt(counts)
        target = np.divide(sums, root, out=np.zeros(_BINS), where=counts > 0)
        coefficients, _ = nnls(self._basis * root[:, None], target)
        return min(float(coefficients[0]), 1.0)
