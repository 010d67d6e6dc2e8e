"""Plant wrong labels on purpose, so that the detection of known label errors can be measured."""

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, softmax

NoiseKind = Literal["symmetric", "pair", "instance"]

# Standard deviation of the flip rates in Xia et al. (2020).
_FLIP_RATE_SD = 0.1


def plant_label_noise(
    labels: NDArray[np.int64],
    kind: NoiseKind,
    fraction: float,
    *,
    images: NDArray[np.uint8],
    rng: np.random.Generator,
    partners: Mapping[int, int] | None = None,
) -> NDArray[np.int64]:
    """Return labels (N,) of which exactly round(fraction x N) differ from `labels`.

    `symmetric`: images are sampled uniformly. Each gets one of the other classes that occur, each equally likely.

    `pair`: images are sampled uniformly. Each gets the partner of its class: the next class that occurs, and the first
    one for the last (Han et al. 2018, Co-teaching, arXiv 1804.06872). With `partners`, only images of these classes
    are sampled, and the fraction is of their number.

    `instance`: every image has a flip rate from a normal distribution with mean `fraction` and standard deviation 0.1,
    truncated to 0 to 1. Its pixels times a random matrix of its class give a score for each other class, and the
    softmax of these scores is the distribution of its new label (Xia et al. 2020, Part-dependent Label Noise,
    arXiv 2006.07836, algorithm 2). That algorithm flips each image independently. Here images are sampled without
    replacement in proportion to their flip rates, which fixes their number.

    Args:
        labels: (N,) classes, at least two different ones.
        fraction: 0 to 1.
        images: (N, H, W, 3), for `instance`.
        partners: class -> the class that it is mistaken for, for `pair`.
    """
    assert 0 <= fraction <= 1, fraction
    assert len(images) == len(labels), (images.shape, labels.shape)
    assert partners is None or kind == "pair", kind
    methods: dict[NoiseKind, Callable[[], NDArray[np.int64]]] = {
        "symmetric": lambda: _symmetric(labels, fraction, rng),
        "pair": lambda: _pair(labels, fraction, partners or next_classes(labels), rng),
        "instance": lambda: _instance(labels, fraction, images, rng),
    }
    return methods[kind]()


def next_classes(labels: NDArray[np.int64]) -> dict[int, int]:
    """Map each class that occurs to the next one, and the last one to the first."""
    classes = np.unique(labels).tolist()
    return dict(zip(classes, [*classes[1:], classes[0]], strict=True))


def _symmetric(labels: NDArray[np.int64], fraction: float, rng: np.random.Generator) -> NDArray[np.int64]:
    classes, index = np.unique(labels, return_inverse=True)
    assert len(classes) > 1, classes
    rows = rng.choice(len(labels), size=round(fraction * len(labels)), replace=False)
    planted = labels.copy()
    planted[rows] = classes[(index[rows] + rng.integers(1, len(classes), len(rows))) % len(classes)]
    return planted


def _pair(
    labels: NDArray[np.int64], fraction: float, partners: Mapping[int, int], rng: np.random.Generator
) -> NDArray[np.int64]:
    assert all(label != partner for label, partner in partners.items()), partners
    candidates = np.flatnonzero(np.isin(labels, list(partners)))
    rows = rng.choice(candidates, size=round(fraction * len(candidates)), replace=False)
    planted = labels.copy()
    planted[rows] = [partners[label] for label in labels[rows].tolist()]
    return planted


def _instance(
    labels: NDArray[np.int64], fraction: float, images: NDArray[np.uint8], rng: np.random.Generator
) -> NDArray[np.int64]:
    classes, index = np.unique(labels, return_inverse=True)
    assert len(classes) > 1, classes
    n, count = len(labels), round(fraction * len(labels))
    flipped = _systematic_sample(_inclusion(_flip_rates(n, fraction, rng), count), count, rng)
    planted = labels.copy()
    # The mean of each pixel is subtracted: otherwise the brightness that images share decides most of the classes.
    mean = np.asarray(images.mean(axis=0, dtype=np.float64)).ravel() / 255
    for label in range(len(classes)):
        projection = rng.standard_normal((len(mean), len(classes)))
        # Sampled for all images, so that the rows of one class do not affect the numbers of another.
        uniform = rng.uniform(size=n)
        rows = np.sort(flipped[index[flipped] == label])
        scores = (images[rows].reshape(len(rows), len(mean)) / 255.0 - mean) @ projection
        scores[:, label] = -np.inf
        cumulative = np.cumsum(softmax(scores, axis=1), axis=1)
        # Scaled, since the last sum may be below 1. The current label has no width, so it is never sampled.
        sampled = (uniform[rows, None] * cumulative[:, -1:] >= cumulative).sum(axis=1)
        planted[rows] = classes[sampled]
    return planted


def _flip_rates(n: int, mean: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Sample (n,) from a normal distribution truncated to 0 to 1, by the inverse of its distribution function."""
    low, high = ndtr((np.array([0.0, 1.0]) - mean) / _FLIP_RATE_SD)
    rates: NDArray[np.float64] = mean + _FLIP_RATE_SD * ndtri(rng.uniform(low, high, n))
    return rates.clip(0.0, 1.0)


def _inclusion(weights: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return inclusion probabilities min(1, c w) for weights w (N,), with the c at which they sum to `count`."""
    if count == 0:
        return np.zeros(len(weights))
    ordered = np.sort(weights)[::-1]
    # If the k largest are certain to be included, the others share count - k in proportion.
    certain = np.arange(count)
    scales = (count - certain) / np.cumsum(ordered[::-1])[::-1][:count]
    fits = scales * ordered[:count] <= 1
    # Only rounding makes the last one not fit, if all others with a positive weight are certain.
    k = int(fits.argmax()) if fits.any() else count - 1
    inclusion: NDArray[np.float64] = np.minimum(1.0, scales[k] * weights)
    return inclusion


def _systematic_sample(inclusion: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Sample exactly `count` rows, each with its probability of inclusion (N,); these sum to `count`.

    Equally spaced points select rows on a line, where each of the shuffled rows has the length of its probability
    (Madow 1949, On the Theory of Systematic Sampling, II).
    """
    order = rng.permutation(len(inclusion))
    ends = np.cumsum(inclusion[order])
    ends *= count / ends[-1] if count else 1.0
    points = rng.uniform() + np.arange(count)
    rows: NDArray[np.int64] = order[np.searchsorted(ends, points, side="right").clip(max=len(order) - 1)]
    return rows
