"""The folders of images with outliers, as stages read them."""

import argparse
from pathlib import Path

import numpy as np
import pytest

from benchmarks.label_noise.case_images import make_case_images
from benchmarks.label_noise.cases import Case, Images, load_images_and_truth
from benchmarks.label_noise.outliers import NO_CLASS
from pipeline.artifacts.prepared import load_prepared
from pipeline.paths import DataPaths
from tests.fixtures.iteration import write_project


@pytest.fixture
def project(tmp_path: Path) -> tuple[argparse.Namespace, Images, DataPaths]:
    base = write_project(tmp_path)
    arguments = argparse.Namespace(data=base.root, labels=None, truth=None, images=None, work=tmp_path / "w", seed=1)
    return arguments, load_images_and_truth(arguments, load_prepared(base, folder=None)), base


def test_damaged_images_replace_the_prepared_ones_and_labels_stay(
    project: tuple[argparse.Namespace, Images, DataPaths],
) -> None:
    arguments, images, base = project
    given = make_case_images(arguments, Case(kind="corrupt", rate=0.1), images, base)
    made, original = load_prepared(given.base, folder=None), load_prepared(base, folder=None)
    changed = (made.train.images != original.train.images).any(axis=(1, 2, 3))
    np.testing.assert_array_equal(given.truth == NO_CLASS, changed)
    assert changed.sum() == 12
    np.testing.assert_array_equal(given.labels, images.truth)
    np.testing.assert_allclose(made.mean, made.train.images.mean(axis=(0, 1, 2)) / 255)
    np.testing.assert_array_equal(made.test.images, original.test.images)


def test_a_class_is_left_out_and_a_killed_folder_is_made_again(
    project: tuple[argparse.Namespace, Images, DataPaths],
) -> None:
    arguments, images, base = project
    killed = arguments.work / "open_set-0.1-images.tmp" / "prepare"
    killed.mkdir(parents=True)
    (killed / "train.npy").write_bytes(b"half")
    given = make_case_images(arguments, Case(kind="open_set", rate=0.1), images, base)
    made, original = load_prepared(given.base, folder=None), load_prepared(base, folder=None)
    assert len(made.class_names) == 3
    (left_out,) = set(original.class_names) - set(made.class_names)
    own = original.test.labels != original.class_names.index(left_out)
    np.testing.assert_array_equal(made.test.images, original.test.images[own])
    names = np.array(original.class_names)[original.test.labels[own]]
    np.testing.assert_array_equal(np.array(made.class_names)[made.test.labels], names)
    assert (given.truth == NO_CLASS).sum() == 10
    assert len(given.labels) == len(made.train.images) == 100
    assert not killed.exists()
    again = make_case_images(arguments, Case(kind="open_set", rate=0.1), images, base)
    np.testing.assert_array_equal(again.labels, given.labels)
    assert again.base == given.base
