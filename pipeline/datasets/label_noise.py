"""Wrong labels planted on purpose, so that it is known which they are: arrays in, arrays out."""

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, softmax

NoiseKind = Literal["symmetric", "pair", "instance"]

# Xia et al. (2020) draw the flip rates with this standard deviation.
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
    """Labels (N,) of which exactly round(fraction x N) differ from those given.

    `symmetric`: the images are drawn evenly. Each goes to any other class that occurs, each equally likely.

    `pair`: the images are drawn evenly. Each goes to the partner of its class: the next class that occurs, and
    the first one for the last (Han et al. 2018, Co-teaching, arXiv 1804.06872). With `partners`, only images of
    these classes take part, and the fraction is one of their number.

    `instance`: every image has a flip rate from a normal distribution with mean `fraction` and standard deviation
    0.1, truncated to 0 to 1. Its pixels times a random matrix of its class give a score for each other class, and
    the softmax of these scores is the distribution of its new label (Xia et al. 2020, Part-dependent Label Noise,
    arXiv 2006.07836, algorithm 2). That algorithm flips each image by an independent draw. Here images are drawn
    without replacement in proportion to their flip rates, so that their number is known beforehand.

    Args:
        labels: (N,) classes, two different ones at least.
        fraction: 0 to 1.
        images: (N, H, W, 3); `instance` alone looks at them.
        partners: class -> class that it is taken for, for `pair`.
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
    """Each class that occurs -> the next one that does; the last one -> the first."""
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
    assert all(own != partner for own, partner in partners.items()), partners
    members = np.flatnonzero(np.isin(labels, list(partners)))
    rows = rng.choice(members, size=round(fraction * len(members)), replace=False)
    planted = labels.copy()
    planted[rows] = [partners[label] for label in labels[rows].tolist()]
    return planted


def _instance(
    labels: NDArray[np.int64], fraction: float, images: NDArray[np.uint8], rng: np.random.Generator
) -> NDArray[np.int64]:
    classes, index = np.unique(labels, return_inverse=True)
    assert len(classes) > 1, classes
    n, count = len(labels), round(fraction * len(labels))
    chosen = _systematic_sample(_inclusion(_flip_rates(n, fraction, rng), count), count, rng)
    planted = labels.copy()
    # A pixel's mean is taken off: with it, the brightness that all images share decides the class of most of them.
    mean = np.asarray(images.mean(axis=0, dtype=np.float64)).ravel() / 255
    for own in range(len(classes)):
        projection = rng.standard_normal((len(mean), len(classes)))
        # Drawn for every class, so that the rows of one do not move the draws of another.
        uniform = rng.uniform(size=n)
        rows = np.sort(chosen[index[chosen] == own])
        scores = (images[rows].reshape(len(rows), len(mean)) / 255.0 - mean) @ projection
        scores[:, own] = -np.inf
        cumulative = np.cumsum(softmax(scores, axis=1), axis=1)
        # Scaled, as the last sum may lie below 1; the own class has no width, so that no draw falls on it.
        drawn = (uniform[rows, None] * cumulative[:, -1:] >= cumulative).sum(axis=1)
        planted[rows] = classes[drawn]
    return planted


def _flip_rates(n: int, mean: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """(n,) from a normal distribution truncated to 0 to 1, by the inverse of its distribution function."""
    low, high = ndtr((np.array([0.0, 1.0]) - mean) / _FLIP_RATE_SD)
    rates: NDArray[np.float64] = mean + _FLIP_RATE_SD * ndtri(rng.uniform(low, high, n))
    return rates.clip(0.0, 1.0)


def _inclusion(weights: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """min(1, c w) for weights (N,), with the c at which they add up to `count`."""
    if count == 0:
        return np.zeros(len(weights))
    ordered = np.sort(weights)[::-1]
    # If the k largest are certain, the others share count - k in proportion.
    certain = np.arange(count)
    scales = (count - certain) / np.cumsum(ordered[::-1])[::-1][:count]
    fits = scales * ordered[:count] <= 1
    # The last one fits but for rounding, where all others with any weight are certain.
    k = int(fits.argmax()) if fits.any() else count - 1
    inclusion: NDArray[np.float64] = np.minimum(1.0, scales[k] * weights)
    return inclusion


def _systematic_sample(inclusion: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Exactly `count` rows, each with its probability of inclusion (N,), which add up to `count`.

    Equally spaced points on a line on which the rows, shuffled, take as much room as they are likely
    (Madow 1949, On the Theory of Systematic Sampling, II).
    """
    order = rng.permutation(len(inclusion))
    ends = np.cumsum(inclusion[order])
    ends *= count / ends[-1] if count else 1.0
    points = rng.uniform() + np.arange(count)
    rows: NDArray[np.int64] = order[np.searchsorted(ends, points, side="right").clip(max=len(order) - 1)]
    return rows
