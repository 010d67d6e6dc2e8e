"""What benchmarks/label_noise audits: planted labels, and those of files."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_training import NAMES, write_prepared

from benchmarks.label_noise.cases import CIFAR10_PAIRS, Case, Images, cases_of, labels_of, load_images_and_truth
from pipeline.artifacts.prepared import load_prepared
from pipeline.errors import InputError
from pipeline.paths import DataPaths

_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _images(class_names: tuple[str, ...] = _CIFAR10, per_class: int = 20) -> Images:
    truth = np.repeat(np.arange(len(class_names)), per_class)
    pixels = np.zeros((len(truth), 1, 1, 3), dtype=np.uint8)
    return Images(pixels=pixels, truth=truth, given=None, class_names=class_names)


def _load(folder: Path, **arguments: Any) -> Images:
    data = DataPaths(root=folder)
    write_prepared(data, n_train=40)
    defaults = {"data": folder, "labels": None, "truth": None, "images": None}
    return load_images_and_truth(argparse.Namespace(**{**defaults, **arguments}), load_prepared(data, folder=None))


def _csv(folder: Path, text: str) -> Path:
    path = folder / "labels.csv"
    path.write_text("path,label\n" + text)
    return path


def test_asymmetric_noise_follows_the_pairs_of_cifar10() -> None:
    images = _images()
    noisy = labels_of(Case(kind="asymmetric", rate=0.4), images, seed=0, probabilities=None)
    moved = {(_CIFAR10[own], _CIFAR10[new]) for own, new in zip(images.truth, noisy, strict=True) if own != new}
    assert moved == set(CIFAR10_PAIRS.items())
    assert (noisy != images.truth).sum() == 5 * 8


def test_asymmetric_noise_needs_the_classes_of_cifar10() -> None:
    with pytest.raises(InputError, match=r"^--kinds: asymmetric pairs the classes of CIFAR-10, .* no airplane; leave"):
        labels_of(Case(kind="asymmetric", rate=0.4), _images(NAMES), seed=0, probabilities=None)


def test_a_rate_that_plants_nothing_is_refused() -> None:
    with pytest.raises(InputError, match=r"^--rates: 0\.001 of 200 images is none; raise it"):
        labels_of(Case(kind="symmetric", rate=0.001), _images(), seed=0, probabilities=None)


def test_seeds_and_rates_draw_apart() -> None:
    images = _images()
    drawn = [
        labels_of(Case(kind="symmetric", rate=rate), images, seed=seed, probabilities=None).tobytes()
        for rate in (0.2, 0.21)
        for seed in (0, 1, 0)
    ]
    assert len(set(drawn)) == 4


def test_all_kinds_are_planted_unless_labels_are_given() -> None:
    images = _images()
    audited = Images(pixels=images.pixels, truth=images.truth, given=images.truth, class_names=images.class_names)
    names = {
        "neither": [case.name for case in cases_of(None, [0.1, 0.2], images)],
        "kinds": [case.name for case in cases_of(["instance"], [0.1], images)],
        "labels": [case.name for case in cases_of(None, [0.1], audited)],
        "both": [case.name for case in cases_of(["symmetric"], [0.3], audited)],
    }
    assert names == {
        "neither": [f"{kind}-{rate}" for kind in ("symmetric", "asymmetric", "instance") for rate in (0.1, 0.2)],
        "kinds": ["instance-0.1"],
        "labels": ["given"],
        "both": ["given", "symmetric-0.3"],
    }


def test_labels_of_a_file_are_audited_against_the_prepared_ones_and_the_other_way_round(tmp_path: Path) -> None:
    file = _csv(tmp_path, "train/ash/00000.png,birch\n")
    own = _load(tmp_path).truth
    changed = own.copy()
    changed[0] = NAMES.index("birch")
    annotated, corrected = _load(tmp_path, labels=file), _load(tmp_path, truth=file)
    for images, given, truth in ((annotated, changed, own), (corrected, own, changed)):
        assert images.given is not None
        np.testing.assert_array_equal(images.given, given)
        np.testing.assert_array_equal(images.truth, truth)


def test_a_file_without_an_error_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"labels\.csv: no label differs from the truth"):
        _load(tmp_path, labels=_csv(tmp_path, "train/ash/00000.png,ash\n"))


def test_some_images_are_the_same_ones_each_time_with_their_labels(tmp_path: Path) -> None:
    everything, some, again = _load(tmp_path), _load(tmp_path, images=10), _load(tmp_path, images=10)
    assert len(some.pixels) == len(some.truth) == 10
    np.testing.assert_array_equal(some.pixels, again.pixels)
    rows = [next(row for row, image in enumerate(everything.pixels) if (image == one).all()) for one in some.pixels]
    np.testing.assert_array_equal(some.truth, everything.truth[rows])
