"""Out-of-fold probabilities."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from made_up import class_blobs
from sklearn.metrics import roc_auc_score

from pipeline.selection.linear_probe import cross_validated_probabilities, folds_of


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60).map(np.array),
    n_folds=st.integers(2, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_folds_and_classes_are_even(labels: np.ndarray, n_folds: int, seed: int) -> None:
    folds = folds_of(labels, n_folds, seed)
    sizes = np.bincount(folds, minlength=n_folds)
    assert sizes.max() - sizes.min() <= 1
    for label in np.unique(labels):
        of_class = np.bincount(folds[labels == label], minlength=n_folds)
        assert of_class.max() - of_class.min() <= 1


def test_wrong_labels_get_little_probability() -> None:
    features, labels = class_blobs(np.random.default_rng(0), n_classes=3, per_class=60, dimensions=5)
    planted = np.arange(180) % 15 == 0
    given_labels = np.where(planted, (labels + 1) % 3, labels)
    probabilities = cross_validated_probabilities(features, given_labels, n_classes=3, n_folds=5, seed=0)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert roc_auc_score(planted, 1 - probabilities[np.arange(180), given_labels]) > 0.95


def test_labels_without_meaning_are_not_learned_by_heart() -> None:
    rng = np.random.default_rng(0)
    # More dimensions than points: in sample, every label could be fitted.
    points, labels = rng.normal(size=(90, 200)).astype(np.float32), rng.integers(0, 2, size=90)
    probabilities = cross_validated_probabilities(points, labels, n_classes=2, n_folds=5, seed=0)
    assert abs(probabilities[np.arange(90), labels].mean() - 0.5) < 0.15


def test_a_class_that_only_one_fold_has_is_never_expected() -> None:
    labels = np.array([0, 1] * 10 + [2])
    points = np.random.default_rng(0).normal(size=(21, 2)).astype(np.float32)
    probabilities = cross_validated_probabilities(points, labels, n_classes=3, n_folds=2, seed=0)
    assert probabilities[20, 2] == 0
