"""Wrong labels planted on purpose, so that it is known which they are."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError

NoiseKind = Literal["symmetric", "asymmetric", "instance"]


def plant(
    labels: NDArray[np.int64],
    kind: NoiseKind,
    rate: float,
    *,
    rng: np.random.Generator,
    probabilities: NDArray[np.floating] | None = None,
    transitions: Mapping[int, int] | None = None,
) -> NDArray[np.int64]:
    """Labels (N,) of which a known number are wrong; each of those differs from the one it had.

    `symmetric`: round(rate x N) images, drawn evenly, go to any other class that occurs, each
    equally likely.

    `asymmetric`: of each class c in `transitions`, round(rate x n_c) of its n_c images go to the
    class it is taken for (Patrini et al. 2017, Making Deep Neural Networks Robust to Label Noise).
    The rate is that of these classes; the share of all images is lower where others stay clean.

    `instance`: round(rate x N) images go to the class other than their own that a reference model
    gives the highest probability, s. Image i is drawn with probability min(1, c s_i), with the
    constant c at which these add up to that number: the most ambiguous go, in the spirit of Xia et
    al. (2020, Part-dependent Label Noise) and Chen et al. (2021, Beyond Class-Conditional
    Assumption, arXiv:2012.05458).

    Args:
        labels: (N,) clean classes.
        rate: 0 to 1.
        probabilities: (N, K), what the reference model gives each class; `instance` alone needs them.
        transitions: class -> class that it is taken for; `asymmetric` alone needs them.

    Raises:
        InputError: for `instance`, fewer images have any probability for another class than are to go.
    """
    assert 0 <= rate <= 1, rate
    assert (kind == "instance") == (probabilities is not None), kind
    assert (kind == "asymmetric") == (transitions is not None), kind
    if transitions is not None:
        return _asymmetric(labels, rate, transitions, rng)
    if probabilities is not None:
        return _instance(labels, rate, probabilities, rng)
    return _symmetric(labels, rate, rng)


def _symmetric(labels: NDArray[np.int64], rate: float, rng: np.random.Generator) -> NDArray[np.int64]:
    classes, place = np.unique(labels, return_inverse=True)
    assert len(classes) > 1, classes
    rows = rng.choice(len(labels), size=round(rate * len(labels)), replace=False)
    moved = labels.copy()
    moved[rows] = classes[(place[rows] + rng.integers(1, len(classes), len(rows))) % len(classes)]
    return moved


def _asymmetric(
    labels: NDArray[np.int64], rate: float, transitions: Mapping[int, int], rng: np.random.Generator
) -> NDArray[np.int64]:
    moved = labels.copy()
    for of_class, taken_for in sorted(transitions.items()):
        assert of_class != taken_for, of_class
        members = np.flatnonzero(labels == of_class)
        moved[rng.choice(members, size=round(rate * len(members)), replace=False)] = taken_for
    return moved


def _instance(
    labels: NDArray[np.int64], rate: float, probabilities: NDArray[np.floating], rng: np.random.Generator
) -> NDArray[np.int64]:
    n = len(labels)
    assert probabilities.ndim == 2, probabilities.shape
    assert len(probabilities) == n, (probabilities.shape, n)
    others = probabilities.astype(np.float64)
    others[np.arange(n), labels] = -np.inf
    strongest = others.argmax(axis=1)
    ambiguity = others[np.arange(n), strongest]
    assert np.isfinite(ambiguity).all()
    assert (ambiguity >= 0).all()
    count, possible = round(rate * n), int((ambiguity > 0).sum())
    if count > possible:
        raise InputError(
            f"rate: {rate} of {n} images is {count}, and the reference model sees another class in {possible} alone; "
            "lower the rate, or train the reference model for less time"
        )
    rows = _systematic_sample(_inclusion(ambiguity, count), count, rng)
    moved = labels.copy()
    moved[rows] = strongest[rows]
    return moved


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
