"""The estimated share of wrong labels: what it must be, its interval, and cleanlab's joint next to it."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import softmax

from pipeline.datasets.label_noise import NoiseKind, plant_label_noise
from pipeline.scoring.wrong_share import confident_joint, estimate_wrong_share


def _case(
    seed: int, n: int = 300, n_classes: int = 4, sharpness: float = 3.0
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Labels of which 15 % are wrong, and random probabilities that favor the true class."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, n_classes, size=n)
    labels = np.where(rng.random(n) < 0.2, rng.integers(0, n_classes, size=n), truth)
    logits = rng.normal(size=(n, n_classes)) + sharpness * np.eye(n_classes)[truth]
    return labels, softmax(logits, axis=1).astype(np.float32)


def _by_definition(labels: NDArray[np.int64], probabilities: NDArray[np.float32]) -> NDArray[np.int64]:
    """Equation 1 of Northcutt et al. (2021), one image at a time."""
    n_classes = probabilities.shape[1]
    exact = probabilities.astype(np.float64)
    counts = np.zeros((n_classes, n_classes), dtype=np.int64)
    thresholds = [exact[labels == j, j].mean() if (labels == j).any() else np.inf for j in range(n_classes)]
    for label, row in zip(labels, exact, strict=True):
        confident = [j for j in range(n_classes) if row[j] >= thresholds[j] - 1e-6]
        if confident:
            counts[label, max(confident, key=lambda j: row[j])] += 1
    return counts


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), sharpness=st.sampled_from([0.0, 1.0, 5.0]))
def test_the_counts_are_those_of_the_definition(seed: int, sharpness: float) -> None:
    labels, probabilities = _case(seed, sharpness=sharpness)
    np.testing.assert_array_equal(confident_joint(labels, probabilities), _by_definition(labels, probabilities))


@pytest.mark.parametrize("seed", range(3))
def test_the_confident_joint_is_cleanlabs(seed: int) -> None:
    count = pytest.importorskip("cleanlab.count")
    # Of several confident classes cleanlab takes the most probable class of all; sharp predictions have no such case.
    labels, probabilities = _case(seed, n=2000, sharpness=6.0)
    exact = probabilities.astype(np.float64)
    expected = count.compute_confident_joint(labels, exact, calibrate=False)
    np.testing.assert_array_equal(confident_joint(labels, probabilities), expected)
    # cleanlab scales to the class counts in integers.
    off_diagonal = 1 - np.trace(count.estimate_joint(labels, exact))
    actual = estimate_wrong_share(labels, probabilities).confident_joint.share
    assert actual == pytest.approx(off_diagonal, abs=2 / len(labels))
    assert 0.1 < actual < 0.2


def test_each_label_counts_by_its_images_not_by_its_confident_ones() -> None:
    """Of the 10 images of a class 4 are confident, 2 of them of the other class: half of the 10 are wrong."""
    labels = np.repeat([0, 1], 10)
    probabilities = np.full((20, 2), 0.5, dtype=np.float32)
    probabilities[:4] = [[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.1, 0.9]]
    probabilities[4:10] = [0.45, 0.55]
    probabilities[10:] = [0.3, 0.7]
    np.testing.assert_array_equal(confident_joint(labels, probabilities), [[2, 2], [0, 10]])
    assert estimate_wrong_share(labels, probabilities).confident_joint.share == pytest.approx(5 / 20)


def _planted(kind: NoiseKind, fraction: float, *, confusion: float) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Noisy labels, and probabilities that favor the true class less where an image is hard.

    Args:
        confusion: standard deviation of the logits of the hardest image, against 5 for the true class.
    """
    rng = np.random.default_rng(0)
    truth = np.arange(8000) % 5
    labels = plant_label_noise(truth, kind, fraction, images=np.zeros((8000, 1, 1, 3), np.uint8), rng=rng)
    hardness = rng.random((8000, 1))
    logits = 5 * (1 - hardness) * np.eye(5)[truth] + confusion * hardness * rng.normal(size=(8000, 5))
    return labels, softmax(logits, axis=1).astype(np.float32)


@pytest.mark.parametrize("kind", ["symmetric", "pair"])
@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.1, 0.4])
@pytest.mark.parametrize("confusion", [0.1, 1.0])
def test_the_planted_share_is_found_with_weak_and_strong_networks(
    kind: NoiseKind, fraction: float, confusion: float
) -> None:
    labels, probabilities = _planted(kind, fraction, confusion=confusion)
    estimated = estimate_wrong_share(labels, probabilities).extrapolated
    assert estimated.share == pytest.approx(fraction, rel=0.2, abs=0.02)
    assert estimated.low <= fraction + 0.01
    assert estimated.high >= fraction - 0.01
    assert 0 <= estimated.low <= estimated.share <= estimated.high <= 1


def test_a_network_that_has_memorized_the_labels_finds_none_wrong() -> None:
    labels, _ = _case(0)
    estimated = estimate_wrong_share(labels, np.eye(4, dtype=np.float32)[labels])
    assert (estimated.extrapolated.share, estimated.confident_joint.share) == (0, 0)


@pytest.mark.slow
def test_the_intervals_cover_the_estimates_of_all_images() -> None:
    """Of samples from one population, about 95 % of the intervals hold the population's value."""
    labels, probabilities = _case(0, n=20_000)
    population = estimate_wrong_share(labels, probabilities)
    rng, covered = np.random.default_rng(1), []
    for _ in range(60):
        rows = rng.integers(0, len(labels), size=500)
        sample = estimate_wrong_share(labels[rows], probabilities[rows])
        covered.append(
            [
                part.low <= whole.share <= part.high
                for part, whole in (
                    (sample.extrapolated, population.extrapolated),
                    (sample.confident_joint, population.confident_joint),
                )
            ]
        )
    assert (np.mean(covered, axis=0) >= 0.85).all()


def test_order_changes_no_estimate_and_the_seed_its_interval() -> None:
    labels, probabilities = _case(0)
    order = np.random.default_rng(0).permutation(len(labels))
    first, moved = (
        estimate_wrong_share(labels, probabilities),
        estimate_wrong_share(labels[order], probabilities[order]),
    )
    assert first.extrapolated.share == pytest.approx(moved.extrapolated.share, abs=1e-12)
    assert first.confident_joint.share == pytest.approx(moved.confident_joint.share, abs=1e-12)
    assert first == estimate_wrong_share(labels, probabilities, seed=0)
    assert first.extrapolated != estimate_wrong_share(labels, probabilities, seed=1).extrapolated


def _absent(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(labels == 2, 0, labels)


def _single_image(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(np.arange(len(labels)) == 0, 2, _absent(labels))


@pytest.mark.parametrize("change", [_absent, _single_image])
def test_a_class_that_is_absent_or_never_predicted_gives_a_share(
    change: Callable[[NDArray[np.int64]], NDArray[np.int64]],
) -> None:
    labels, probabilities = _case(0)
    probabilities[:, 2] = 0
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    estimated = estimate_wrong_share(change(labels), probabilities)
    for interval in (estimated.extrapolated, estimated.confident_joint):
        assert 0 <= interval.low <= interval.share <= interval.high <= 1
