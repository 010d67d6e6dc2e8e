"""Planted noise: how much, where, and what it becomes."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.selection.noise import plant

_RATES = st.floats(0, 1)
_SEEDS = st.integers(0, 2**32 - 1)


def _draw(seed: int, n: int, n_classes: int) -> NDArray[np.int64]:
    """(n,) with two classes or more."""
    labels = np.random.default_rng(seed).integers(0, n_classes, n)
    labels[:2] = 0, n_classes - 1
    return labels


def _probabilities(seed: int, n: int, n_classes: int, sharpness: float) -> NDArray[np.float64]:
    logits = np.random.default_rng([seed, 1]).normal(size=(n, n_classes)) * sharpness
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


_LABELS = st.builds(_draw, _SEEDS, st.integers(2, 200), st.integers(2, 12))


@given(_LABELS, _RATES, _SEEDS)
def test_symmetric_noise_changes_exactly_its_share_to_classes_that_occur(
    labels: NDArray[np.int64], rate: float, seed: int
) -> None:
    before = labels.copy()
    noisy = plant(labels, "symmetric", rate, rng=np.random.default_rng(seed))
    np.testing.assert_array_equal(labels, before)
    assert (noisy != labels).sum() == round(rate * len(labels))
    assert set(noisy) <= set(labels)
    np.testing.assert_array_equal(noisy, plant(labels, "symmetric", rate, rng=np.random.default_rng(seed)))


def test_symmetric_noise_goes_to_all_other_classes_alike() -> None:
    labels = np.repeat([0, 2, 5, 9], 5000)
    noisy = plant(labels, "symmetric", 0.6, rng=np.random.default_rng(0))
    counts = np.array([[(noisy[labels == own] == other).sum() for other in (0, 2, 5, 9)] for own in (0, 2, 5, 9)])
    # Of each class 3,000 go, 1,000 to each other: five standard deviations are 160.
    assert np.abs(counts[~np.eye(4, dtype=bool)] - 1000).max() < 160


@given(_LABELS, _RATES, _SEEDS, st.data())
def test_asymmetric_noise_changes_exactly_its_share_of_each_class_and_to_its_pair(
    labels: NDArray[np.int64], rate: float, seed: int, data: st.DataObject
) -> None:
    classes = [int(label) for label in np.unique(labels)]
    pairs = {own: data.draw(st.sampled_from([c for c in classes if c != own])) for own in classes[:-1]}
    noisy = plant(labels, "asymmetric", rate, rng=np.random.default_rng(seed), transitions=pairs)
    for own in classes:
        moved = noisy[(labels == own) & (noisy != own)]
        assert len(moved) == (round(rate * (labels == own).sum()) if own in pairs else 0)
        assert set(moved) <= {pairs.get(own)}
    again = plant(labels, "asymmetric", rate, rng=np.random.default_rng(seed), transitions=pairs)
    np.testing.assert_array_equal(noisy, again)


@given(_LABELS, _RATES, _SEEDS, st.floats(0, 30))
def test_instance_noise_changes_exactly_its_share_to_the_strongest_other_class(
    labels: NDArray[np.int64], rate: float, seed: int, sharpness: float
) -> None:
    probabilities = _probabilities(seed, len(labels), int(labels.max()) + 1, sharpness)
    before = probabilities.copy()
    noisy = plant(labels, "instance", rate, rng=np.random.default_rng(seed), probabilities=probabilities)
    np.testing.assert_array_equal(probabilities, before)
    rows = np.flatnonzero(noisy != labels)
    assert len(rows) == round(rate * len(labels))
    for row in rows:
        assert probabilities[row, noisy[row]] == np.delete(probabilities[row], labels[row]).max()
    again = plant(labels, "instance", rate, rng=np.random.default_rng(seed), probabilities=probabilities)
    np.testing.assert_array_equal(noisy, again)


def test_images_go_in_proportion_to_their_ambiguity_and_certainly_where_that_is_more_than_one() -> None:
    labels = np.zeros(6, dtype=np.int64)
    other = np.array([0.9, 0.1, 0.1, 0.2, 0.0, 0.2])
    probabilities = np.stack([1 - other, other], axis=1)
    drawn = [
        plant(labels, "instance", 0.5, rng=np.random.default_rng(seed), probabilities=probabilities)
        for seed in range(4000)
    ]
    # Three go: the first for certain, and the others share two in proportion.
    np.testing.assert_allclose(np.mean(drawn, axis=0), [1, 1 / 3, 1 / 3, 2 / 3, 0, 2 / 3], atol=0.04)


def test_a_model_that_is_sure_of_too_many_images_is_refused() -> None:
    probabilities = np.array([[1.0, 0.0]] * 8 + [[0.9, 0.1]] * 2)
    labels = np.zeros(10, dtype=np.int64)
    noisy = plant(labels, "instance", 0.2, rng=np.random.default_rng(0), probabilities=probabilities)
    np.testing.assert_array_equal(noisy, [0] * 8 + [1] * 2)
    with pytest.raises(InputError, match="is 3, and the reference model sees another class in 2 alone; lower"):
        plant(labels, "instance", 0.3, rng=np.random.default_rng(0), probabilities=probabilities)


@given(_LABELS, _SEEDS)
def test_different_seeds_plant_differently(labels: NDArray[np.int64], seed: int) -> None:
    assume(len(labels) >= 60)
    first, second = (plant(labels, "symmetric", 0.5, rng=np.random.default_rng([seed, i])) for i in range(2))
    assert (first != second).any()


def test_any_two_images_can_go_together() -> None:
    labels, probabilities = np.zeros(4, dtype=np.int64), np.full((4, 2), 0.5)
    drawn = {
        tuple(plant(labels, "instance", 0.5, rng=np.random.default_rng(seed), probabilities=probabilities))
        for seed in range(200)
    }
    assert len(drawn) == 6
