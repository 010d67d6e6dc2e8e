"""Planted noise: how much, where, and what it becomes."""

import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.datasets.label_noise import NoiseKind, plant_label_noise
from tests.fixtures.projects import ROOT

_FRACTIONS = st.floats(0, 1)
_SEEDS = st.integers(0, 2**32 - 1)
_KINDS: tuple[NoiseKind, ...] = ("symmetric", "pair", "instance")

each_kind = pytest.mark.parametrize("kind", _KINDS)


def _draw(seed: int, n: int, n_classes: int) -> NDArray[np.int64]:
    """(n,) with two classes or more."""
    labels = np.random.default_rng(seed).integers(0, n_classes, n)
    labels[:2] = 0, n_classes - 1
    return labels


def _pixels(seed: int, n: int) -> NDArray[np.uint8]:
    return np.random.default_rng([seed, 1]).integers(0, 256, (n, 4, 4, 3), dtype=np.uint8)


_LABELS = st.builds(_draw, _SEEDS, st.integers(2, 200), st.integers(2, 12))


@each_kind
@given(_LABELS, _FRACTIONS, _SEEDS)
def test_the_exact_fraction_of_labels_goes_to_classes_that_occur(
    kind: NoiseKind, labels: NDArray[np.int64], fraction: float, seed: int
) -> None:
    before, images = labels.copy(), _pixels(seed, len(labels))
    pixels = images.copy()
    planted = plant_label_noise(labels, kind, fraction, images=images, rng=np.random.default_rng(seed))
    np.testing.assert_array_equal(labels, before)
    np.testing.assert_array_equal(images, pixels)
    assert (planted != labels).sum() == round(fraction * len(labels))
    assert set(planted) <= set(labels)
    again = plant_label_noise(labels, kind, fraction, images=images, rng=np.random.default_rng(seed))
    np.testing.assert_array_equal(planted, again)


def test_symmetric_noise_goes_to_all_other_classes_alike() -> None:
    labels = np.repeat([0, 2, 5, 9], 5000)
    planted = plant_label_noise(labels, "symmetric", 0.6, images=_pixels(0, len(labels)), rng=np.random.default_rng(0))
    counts = np.array([[(planted[labels == own] == other).sum() for other in (0, 2, 5, 9)] for own in (0, 2, 5, 9)])
    # Of each class 3,000 go, 1,000 to each other: five standard deviations are 160.
    assert np.abs(counts[~np.eye(4, dtype=bool)] - 1000).max() < 160


def test_pair_noise_goes_to_the_next_class_that_occurs() -> None:
    labels = np.repeat([0, 2, 5, 9], 50)
    planted = plant_label_noise(labels, "pair", 0.4, images=_pixels(0, len(labels)), rng=np.random.default_rng(0))
    moved = planted != labels
    assert set(zip(labels[moved].tolist(), planted[moved].tolist(), strict=True)) == {(0, 2), (2, 5), (5, 9), (9, 0)}


@given(_LABELS, _FRACTIONS, _SEEDS, st.data())
def test_with_partners_only_their_classes_take_part(
    labels: NDArray[np.int64], fraction: float, seed: int, data: st.DataObject
) -> None:
    classes = [int(label) for label in np.unique(labels)]
    partners = {own: data.draw(st.sampled_from([c for c in classes if c != own])) for own in classes[:-1]}
    images, rng = _pixels(seed, len(labels)), np.random.default_rng(seed)
    planted = plant_label_noise(labels, "pair", fraction, images=images, rng=rng, partners=partners)
    moved = planted != labels
    assert moved.sum() == round(fraction * np.isin(labels, list(partners)).sum())
    assert all(partners[own] == new for own, new in zip(labels[moved].tolist(), planted[moved].tolist(), strict=True))


def test_instance_noise_depends_on_the_pixels_and_on_the_class() -> None:
    """Of 40 images, each 50 times and all of one class, equal images get one label, and others differ."""
    pictures = _pixels(0, 40)
    images, labels = np.repeat(pictures, 50, axis=0), np.repeat(0, 2000)
    # Two images of each other class, which else nothing could become.
    images = np.concatenate([images, _pixels(1, 18)])
    labels = np.concatenate([labels, np.repeat(np.arange(1, 10), 2)])
    planted = plant_label_noise(labels, "instance", 0.6, images=images, rng=np.random.default_rng(0))
    became = [planted[50 * k : 50 * (k + 1)] for k in range(40)]
    shares = [np.bincount(new[new != 0], minlength=10).max() / max(1, (new != 0).sum()) for new in became]
    # By chance the most frequent of nine classes has about a quarter of 30 draws.
    assert np.mean(shares) > 0.5
    assert len({int(np.bincount(new[new != 0], minlength=10).argmax()) for new in became}) > 3


def test_instance_noise_of_another_class_has_another_projection() -> None:
    images, labels = np.repeat(_pixels(0, 1), 600, axis=0), np.repeat(np.arange(6), 100)
    images[:3] = 255 - images[:3]  # Of equal images nothing would be left without their mean.
    planted = plant_label_noise(labels, "instance", 0.5, images=images, rng=np.random.default_rng(0))
    moved = [np.bincount(planted[(labels == own) & (planted != own)], minlength=6) for own in range(6)]
    assert len({tuple(counts.tolist()) for counts in moved}) == 6


@each_kind
@given(_LABELS, _SEEDS)
def test_different_seeds_plant_differently(kind: NoiseKind, labels: NDArray[np.int64], seed: int) -> None:
    assume(len(labels) >= 60)
    images = _pixels(seed, len(labels))
    first, second = (
        plant_label_noise(labels, kind, 0.5, images=images, rng=np.random.default_rng([seed, index]))
        for index in range(2)
    )
    assert (first != second).any()


def test_any_two_images_can_go_together() -> None:
    labels, images = np.array([0, 1, 0, 1]), _pixels(0, 4)
    planted_labels = {
        tuple(
            (
                plant_label_noise(labels, "instance", 0.5, images=images, rng=np.random.default_rng(seed)) != labels
            ).tolist()
        )
        for seed in range(300)
    }
    assert len(planted_labels) == 6


def test_the_kinds_of_prepare_are_written_once() -> None:
    """Benchmarks of these kinds plant by the function of `prepare`; those of other kinds say how."""
    planting = [
        path.relative_to(ROOT).as_posix()
        for folder in ("pipeline", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if re.search(r"^def (plant_label_noise|_symmetric)\(", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    ]
    assert planting == ["pipeline/datasets/label_noise.py"]
