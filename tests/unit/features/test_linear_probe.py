"""Out-of-fold probabilities."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pipeline.commands.filter_features.command import probe_folds_of
from pipeline.commands.filter_features.inputs import ExternalFeatures
from pipeline.config.filter import FilterConfig
from pipeline.features import linear
from pipeline.features.linear import ProbeResult, cross_validated_probabilities, probe_folds
from tests.fixtures.golden import check_golden, refusals
from tests.fixtures.projects import class_blobs


def _probe(points: NDArray[np.float32], labels: NDArray[np.int64], n_classes: int, n_folds: int = 5) -> ProbeResult:
    folds = probe_folds(labels, n_folds, seed=0, key="features", fix="give more images")
    return cross_validated_probabilities(points, labels, folds=folds, n_classes=n_classes)


@given(
    labels=st.lists(st.integers(0, 4), min_size=12, max_size=60).map(lambda some: np.array([0, 0, 1, 1, *some])),
    n_folds=st.integers(2, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_folds_and_classes_are_even(labels: NDArray[np.int64], n_folds: int, seed: int) -> None:
    folds = probe_folds(labels, n_folds, seed, key="features", fix="give more images")
    sizes = np.bincount(folds, minlength=n_folds)
    assert sizes.max() - sizes.min() <= 1
    for label in np.unique(labels):
        of_class = np.bincount(folds[labels == label], minlength=n_folds)
        assert of_class.max() - of_class.min() <= 1


def test_labels_that_no_folds_fit_are_refused() -> None:
    labels = {"fewer images than folds": [0, 0, 1, 1], "a class that one fold has alone": [0] * 10 + [1]}

    def fold(given: list[int]) -> None:
        rows = len(given)
        features = ExternalFeatures(
            features=np.zeros((rows, 2), np.float32), labels=np.array(given), class_names=["cat", "dog"], paths=None,
            sha256=None, probabilities=None,
        )  # fmt: skip
        probe_folds_of(
            features, FilterConfig.model_validate({"scorer": {"name": "label_odds"}, "drop_fraction": 0.2}), shown=False
        )

    cases = {name: partial(fold, case) for name, case in labels.items()}
    check_golden("refused_probes.txt", refusals(cases))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_each_fold_is_predicted_by_a_regression_on_the_others(n_classes: int) -> None:
    points, labels = class_blobs(np.random.default_rng(0), n_classes, per_class=20, dimensions=5, spread=8)
    folds = probe_folds(labels, 3, seed=1, key="features", fix="give more images")
    actual = cross_validated_probabilities(points, labels, folds=folds, n_classes=n_classes)
    for fold in range(3):
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        model.fit(points[folds != fold].astype(np.float64), labels[folds != fold])
        expected = model.predict_proba(points[folds == fold].astype(np.float64))
        np.testing.assert_allclose(actual.probabilities[folds == fold], expected, atol=1e-5)
        assert actual.iterations[fold] == model[-1].n_iter_.max()
    assert actual.converged


def test_fold_that_does_not_converge_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    points, labels = class_blobs(np.random.default_rng(0), 3, per_class=20, dimensions=5, spread=8)
    monkeypatch.setattr(linear, "MAX_ITERATIONS", 2)
    actual = _probe(points, labels, 3)
    assert (actual.converged, actual.iterations) == (False, [2] * 5)


def test_wrong_labels_get_little_probability() -> None:
    features, labels = class_blobs(np.random.default_rng(0), n_classes=3, per_class=60, dimensions=5)
    planted = np.arange(180) % 15 == 0
    given_labels = np.where(planted, (labels + 1) % 3, labels)
    probabilities = _probe(features, given_labels, 3).probabilities
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    assert roc_auc_score(planted, 1 - probabilities[np.arange(180), given_labels]) > 0.95


def test_labels_without_meaning_are_not_learned_by_heart() -> None:
    rng = np.random.default_rng(0)
    # More dimensions than points: in sample, every label could be fitted.
    points, labels = rng.normal(size=(90, 200)).astype(np.float32), rng.integers(0, 2, size=90)
    probabilities = _probe(points, labels, 2).probabilities
    assert abs(probabilities[np.arange(90), labels].mean() - 0.5) < 0.15


def test_a_class_that_only_one_fold_has_is_never_expected() -> None:
    labels = np.array([0, 1] * 10 + [2])
    points = np.random.default_rng(0).normal(size=(21, 2)).astype(np.float32)
    probabilities = _probe(points, labels, 3, n_folds=2).probabilities
    assert probabilities[20, 2] == 0
