"""`batchsieve.find_issues` on arrays: what it flags, and properties that hold for any of them."""

import re
import sys
import warnings
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from batchsieve import InputError, LabelIssues, find_issues
from batchsieve.issues import LabelScorer
from tests.fixtures.projects import class_blobs

SCORERS = get_args(LabelScorer)
OF_PROBABILITIES = SCORERS[:4]
CLASSES = 3


def _features(seed: int, n: int = 45) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping blobs: features (n, 4) and labels (n,), of which some are wrong."""
    features, labels = class_blobs(np.random.default_rng(seed), n_classes=CLASSES, per_class=n // CLASSES, dimensions=4)
    labels[:: n // 6] = (labels[:: n // 6] + 1) % CLASSES
    return features, labels


def _probabilities(seed: int, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Labels (n,) of all classes, some wrong, and probabilities (n, C) that know little of the right ones."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.arange(n) % CLASSES)
    values = rng.random((n, CLASSES)) + np.eye(CLASSES)[truth]
    labels = np.where(np.arange(n) % 7 == 0, (truth + 1) % CLASSES, truth)
    return labels, values / values.sum(axis=1, keepdims=True)


def _arguments(scorer: str, seed: int) -> tuple[np.ndarray, dict[str, Any]]:
    if scorer in OF_PROBABILITIES or scorer == "confident_learning":
        labels, probabilities = _probabilities(seed)
        return labels, {"pred_probs": probabilities}
    features, labels = _features(seed)
    return labels, {"features": features}


@pytest.mark.parametrize("scorer", SCORERS)
def test_find_issues_planted_labels_rank_first(scorer: LabelScorer) -> None:
    features, truth = class_blobs(np.random.default_rng(0), n_classes=CLASSES, per_class=60, dimensions=8)
    planted = np.arange(len(truth)) % 20 == 7
    labels = np.where(planted, (truth + 1) % CLASSES, truth)
    issues = find_issues(labels, features=10 * features, scorer=scorer)
    assert roc_auc_score(planted, issues.score) == 1
    assert (issues.is_issue == planted).all()
    assert set(issues.ranked()[: planted.sum()].tolist()) == set(np.flatnonzero(planted).tolist())
    assert (issues.suggested_label == truth).all()
    for row in np.flatnonzero(planted):
        assert re.search(rf"(9|10) of 10 nearest \w+ are {truth[row]}$", issues.reason[row])


@pytest.mark.parametrize("scorer", SCORERS)
def test_find_issues_scores_lie_in_the_unit_interval(scorer: LabelScorer) -> None:
    labels, evidence = _arguments(scorer, 0)
    issues = find_issues(labels, **evidence, scorer=scorer)
    assert issues.score.shape == issues.is_issue.shape == issues.reason.shape == issues.label.shape == labels.shape
    assert ((issues.score >= 0) & (issues.score <= 1)).all()
    assert issues.score.max() > 0.5 > issues.score.min()
    assert (issues.is_issue == (issues.score > 0.5)).all()
    assert all(isinstance(reason, str) and reason for reason in issues.reason)
    assert issues.suggested_label.dtype == labels.dtype


@pytest.mark.parametrize("scorer", ["label_odds", "knn_agreement"])
def test_find_issues_flags_the_estimated_share(scorer: LabelScorer) -> None:
    features, truth = class_blobs(np.random.default_rng(0), n_classes=CLASSES, per_class=100, dimensions=8)
    planted = np.arange(len(truth)) % 10 == 7
    labels = np.where(planted, (truth + 1) % CLASSES, truth)
    issues = find_issues(labels, features=10 * features, scorer=scorer, fraction="estimated")
    assert issues.wrong_share is not None
    share = issues.wrong_share.extrapolated
    assert share.low <= share.share == pytest.approx(0.1, abs=0.02)
    assert abs(issues.is_issue.sum() - share.share * len(labels)) <= 1
    assert find_issues(labels, features=features, scorer=scorer).wrong_share is None


@settings(max_examples=8)
@given(st.integers(0, 1000))
@pytest.mark.parametrize("scorer", [*OF_PROBABILITIES, "smoothed_confidence", "knn_agreement"])
def test_find_issues_follows_a_permutation_of_the_samples(scorer: LabelScorer, seed: int) -> None:
    labels, evidence = _arguments(scorer, seed)
    order = np.random.default_rng(seed).permutation(len(labels))
    straight = find_issues(labels, **evidence, scorer=scorer)
    permuted = find_issues(labels[order], **{name: array[order] for name, array in evidence.items()}, scorer=scorer)
    np.testing.assert_array_equal(permuted.score, straight.score[order])
    np.testing.assert_array_equal(permuted.reason, straight.reason[order])


@settings(max_examples=8)
@given(st.integers(0, 1000), st.booleans())
def test_find_issues_string_labels_are_integer_labels(seed: int, from_features: bool) -> None:
    labels, evidence = _arguments("smoothed_confidence" if from_features else "margin", seed)
    names = np.array(["ant", "bee", "cat"])
    numbers, strings = find_issues(labels, **evidence), find_issues(names[labels].astype(object), **evidence)
    np.testing.assert_array_equal(strings.score, numbers.score)
    np.testing.assert_array_equal(strings.suggested_label, names[numbers.suggested_label])


@given(st.integers(0, 1000), st.floats(0, 0.99))
def test_find_issues_flags_the_fraction_of_highest_scores(seed: int, fraction: float) -> None:
    labels, probabilities = _probabilities(seed)
    issues = find_issues(labels, probabilities, fraction=fraction)
    assert abs(int(issues.is_issue.sum()) - fraction * len(labels)) <= 0.5 + 1e-6
    assert issues.score[issues.is_issue].min(initial=2) > issues.score[~issues.is_issue].max(initial=-1)


@pytest.mark.filterwarnings("ignore:pred_probs")
def test_label_odds_are_those_of_another_class_against_the_label() -> None:
    probabilities = np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.5, 0.25, 0.25]])
    found = find_issues([0, 0, 1], probabilities, class_names=[0, 1, 2])
    np.testing.assert_allclose(found.score, [1 / 3, 3 / 4, 2 / 3], rtol=1e-6)
    assert found.is_issue.tolist() == [False, True, True]
    assert found.reason[1] == "labeled 0 (20.0 %), predicted 2 (60.0 %)"
    assert found.reason[0] == "labeled and predicted 0 (60.0 %)"


def test_find_issues_columns_are_numbered_where_a_class_is_absent() -> None:
    probabilities = np.full((4, 5), 0.1) + 0.5 * np.eye(5)[[0, 4, 4, 0]]
    found = find_issues([0, 4, 0, 0], probabilities)
    assert found.is_issue.tolist() == [False, False, True, False]
    assert found.suggested_label.tolist() == [0, 4, 4, 0]
    np.testing.assert_allclose(found.suggested_probability, 0.6)
    named = find_issues(["a", "e", "a", "a"], probabilities, class_names=["a", "b", "c", "d", "e"])
    np.testing.assert_array_equal(named.score, found.score)


def test_find_issues_class_names_give_the_order_of_the_columns() -> None:
    labels, probabilities = _probabilities(0)
    backwards = np.array(["c", "b", "a"])
    found = find_issues(backwards[labels], probabilities, class_names=backwards.tolist())
    np.testing.assert_array_equal(found.score, find_issues(labels, probabilities).score)


def test_find_issues_reads_classes_from_columns_of_a_data_frame() -> None:
    labels, probabilities = _probabilities(0)
    names = np.array(["ant", "bee", "cat"])
    expected = find_issues(labels, probabilities).score
    for classes in (np.arange(CLASSES), names):
        for texts in (classes, classes.astype(str)):
            frame = pd.DataFrame(probabilities[:, [2, 0, 1]], columns=texts[[2, 0, 1]])
            found = find_issues(classes[labels], frame)
            np.testing.assert_array_equal(found.score, expected)
            assert found.suggested_label.dtype == classes.dtype
    turned = pd.DataFrame(probabilities, columns=names[[2, 0, 1]])
    np.testing.assert_array_equal(find_issues(names[labels], turned, class_names=names.tolist()).score, expected)
    others = pd.DataFrame(probabilities, columns=["p", "q", "r"])
    np.testing.assert_array_equal(find_issues(names[labels], others).score, expected)


@pytest.mark.parametrize(("classes", "agreeing", "warns"), [(2, 10, True), (2, 11, False), (5, 8, True), (5, 9, False)])
def test_probabilities_in_another_order_are_warned_of(classes: int, agreeing: int, warns: bool) -> None:
    """Twice the agreement of chance, or half of the 20 rows with few classes."""
    labels = np.arange(20) % classes
    predicted = np.where(np.arange(20) < agreeing, labels, (labels + 1) % classes)
    with warnings.catch_warnings(record=True, action="always") as caught:
        find_issues(labels, np.eye(classes)[predicted])
    assert [warning.category for warning in caught] == [UserWarning] * warns
    for warning in caught:
        assert str(warning.message).startswith(f"pred_probs: the most probable class is the label in {agreeing * 5}")
        assert warning.filename == __file__


def test_find_issues_takes_other_numeric_types() -> None:
    features, labels = _features(0)
    wide, narrow = (find_issues(labels.astype(kind), features=features.astype(np.float32)) for kind in ("u1", "i8"))
    np.testing.assert_array_equal(wide.score, narrow.score)


def test_find_issues_leaves_its_arguments_alone_and_repeats() -> None:
    features, labels = _features(3)
    before = features.copy(), labels.copy()
    first, second = (find_issues(labels, features=features) for _ in range(2))
    np.testing.assert_array_equal(first.score, second.score)
    np.testing.assert_array_equal(features, before[0])
    np.testing.assert_array_equal(labels, before[1])
    assert not first.score.flags.writeable


def test_label_issues_table_has_the_most_suspect_first() -> None:
    labels, probabilities = _probabilities(1)
    issues = find_issues(labels, probabilities)
    frame = issues.to_pandas()
    assert frame.index.name == "sample"
    suggestion = ["suggested_label", "suggested_probability"]
    assert frame.columns.tolist() == ["label", "score", "is_issue", *suggestion, "reason"]
    assert frame["score"].is_monotonic_decreasing
    np.testing.assert_array_equal(frame["score"], issues.score[frame.index])


def test_without_probabilities_most_neighbors_give_the_suggestion() -> None:
    features, truth = class_blobs(np.random.default_rng(0), n_classes=CLASSES, per_class=60, dimensions=8)
    labels = truth.copy()
    labels[:2] = (truth[:2] + 1) % CLASSES
    issues = find_issues(labels, features=10 * features, scorer="knn_agreement")
    assert issues.suggested_label.tolist() == truth.tolist()
    assert issues.suggested_probability[0] == pytest.approx(1 - issues.score[truth == truth[0]].min(), abs=0.11)
    assert issues.reason[3].endswith("share its label")


@pytest.mark.filterwarnings("ignore:pred_probs")
def test_label_issues_are_shown_in_brief() -> None:
    labels = np.array(["<a>", "b"] * 20)
    issues = find_issues(labels, np.full((40, 2), 0.5))
    assert isinstance(issues, LabelIssues)
    assert repr(issues) == "LabelIssues(0 of 40 samples, scorer='label_odds')"
    page = issues._repr_html_()
    assert page.count("<tr>") == 6
    assert "<a>" not in page
    assert re.findall(r"<th>(\w+)</th>", page) == ["sample", *issues.columns()]


_LABELS = np.arange(12) % 3
_SURE = 0.1 + 0.7 * np.eye(3)[_LABELS]
_PLACES = np.random.default_rng(0).normal(size=(12, 4))
_HOLE = np.where(np.arange(48).reshape(12, 4) == 17, np.nan, _PLACES)


@pytest.mark.parametrize(
    ("labels", "options", "key"),
    [
        (_LABELS, {}, "pred_probs, features"),
        (_LABELS, {"pred_probs": _SURE[:-1]}, "pred_probs"),
        (_LABELS, {"pred_probs": _SURE[:, :2]}, "pred_probs"),
        (_LABELS, {"pred_probs": _SURE[:, 0]}, "pred_probs"),
        (_LABELS, {"pred_probs": 2 * _SURE}, "pred_probs"),
        (_LABELS, {"pred_probs": np.where(_SURE > 0.5, np.nan, _SURE)}, "pred_probs"),
        (_LABELS, {"pred_probs": _SURE + np.array([0.2, -0.2, 0])}, "pred_probs"),
        (_LABELS, {"pred_probs": [["a"] * 3] * 12}, "pred_probs"),
        (_LABELS, {"features": _PLACES[:-1]}, "features"),
        (_LABELS, {"features": _PLACES[:, 0]}, "features"),
        (_LABELS, {"features": _HOLE}, "features"),
        (_LABELS, {"features": 1e39 * _PLACES}, "features"),
        (_LABELS, {"features": np.ones((12, 4))}, "features"),
        (_LABELS, {"features": _PLACES, "n_neighbors": 12}, "n_neighbors"),
        (_LABELS, {"features": _PLACES, "n_neighbors": 0}, "n_neighbors"),
        (_LABELS, {"features": _PLACES, "n_components": 0}, "n_components"),
        (_LABELS, {"features": _PLACES, "folds": 1}, "folds"),
        (_LABELS, {"features": _PLACES, "seed": -1}, "seed"),
        (_LABELS[:4], {"features": _PLACES[:4], "n_neighbors": 2}, "labels"),
        ([0, 1, 1, 1, 1, 1], {"features": _PLACES[:6], "n_neighbors": 2}, "labels"),
        (_LABELS, {"pred_probs": _SURE, "fraction": 1.0}, "fraction"),
        (_LABELS, {"pred_probs": _SURE, "fraction": np.nan}, "fraction"),
        (_LABELS, {"pred_probs": _SURE, "fraction": "most"}, "fraction"),
        (_LABELS, {"pred_probs": _SURE, "scorer": "dbscan"}, "scorer"),
        (_LABELS, {"pred_probs": _SURE, "scorer": "knn_agreement"}, "scorer"),
        (_LABELS, {"pred_probs": _SURE, "class_names": [0, 1]}, "pred_probs"),
        (_LABELS, {"pred_probs": _SURE, "class_names": [0, 1, 1]}, "class_names"),
        (_LABELS, {"pred_probs": _SURE, "class_names": ["0", "1", "2"]}, "class_names"),
        (_LABELS, {"pred_probs": _SURE, "class_names": [0, 1, 3]}, "labels"),
        (_LABELS, {"pred_probs": _SURE, "class_names": [0.0, 1.0, 2.0]}, "class_names"),
        (_LABELS, {"features": _PLACES, "class_names": []}, "class_names"),
        (np.zeros(12, int), {"features": _PLACES}, "labels"),
        (np.zeros(12, int), {"pred_probs": np.ones((12, 1))}, "labels"),
        (np.zeros(12, int), {"pred_probs": _SURE}, "labels"),
        (_LABELS, {"features": 1e30 * _PLACES}, "features"),
        ([], {"features": _PLACES}, "labels"),
        (_LABELS[:, None], {"features": _PLACES}, "labels"),
        (_LABELS / 2, {"features": _PLACES}, "labels"),
        (["a", None] * 6, {"features": _PLACES}, "labels"),
    ],
)
def test_find_issues_names_the_argument_that_is_wrong(labels: Any, options: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError) as raised:
        find_issues(labels, **options)
    assert str(raised.value).partition(": ")[0] == key
    assert "\n" not in str(raised.value)


def test_large_integers_are_told_apart_or_refused() -> None:
    names = [2**60 + 1, 2**60 + 2]
    issues = find_issues(np.array(names * 6, dtype=np.uint64), np.eye(2)[[0, 1] * 6], class_names=names)
    assert issues.suggested_label.tolist() == names * 6
    with pytest.raises(InputError, match=r"^labels: row 1 is 1180591620717411303424, beyond 64 bits"):
        find_issues([0, 2**70], np.eye(2))


@pytest.mark.filterwarnings("ignore:pred_probs")
def test_in_a_tie_the_label_is_suggested() -> None:
    """As in votes of two annotators."""
    issues = find_issues(np.arange(40) % 2, np.full((40, 2), 0.5), fraction="estimated")
    assert issues.suggested_label.tolist() == issues.label.tolist()
    assert issues.reason[1] == "labeled and predicted 1 (50.0 %)"
    assert issues.wrong_share is not None
    assert issues.wrong_share.extrapolated.share == 0


def test_a_missing_extra_is_named_as_the_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cleanlab.filter", None)
    with pytest.raises(InputError, match=r"^scorer: confident_learning needs cleanlab"):
        find_issues(_LABELS, _SURE, scorer="confident_learning")
