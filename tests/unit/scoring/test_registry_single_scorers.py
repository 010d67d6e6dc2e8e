"""Each scorer against figures worked out by hand or by its library."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import HDBSCAN

from pipeline.errors import InputError
from pipeline.scoring import density, distances
from pipeline.scoring.base import ScoredImages, ScorerInputs
from pipeline.scoring.registry import SCORERS, check_scorer, relative_ranks

_PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5]], dtype=np.float32)
_BELIEFS = ScorerInputs(labels=np.array([0, 0, 2]), probabilities=_PROBABILITIES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("self_confidence", [0.3, 0.9, 0.5]),
        ("margin", [(1 - 0.5) / 2, (1 + 0.5) / 2, (1 - 0.25) / 2]),
        ("el2n", np.sqrt([(0.09 + 0.04 + 0.01) / 2, (0.81 + 0.36 + 0.09) / 2, (0.0625 + 0.0625 + 0.25) / 2])),
    ],
)
def test_beliefs_by_hand(name: str, expected: list[float]) -> None:
    np.testing.assert_allclose(SCORERS[name].values(_BELIEFS), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("probability", "text"), [(1.0, "100"), (0.996, "100"), (0.994, "99"), (0.5, "50"), (0.0012, "0.12"), (0.0, "0")]
)
def test_percent_has_no_exponent(probability: float, text: str) -> None:
    probabilities = np.array([[probability, 1 - probability]], dtype=np.float64).astype(np.float32)
    inputs = ScorerInputs(labels=np.array([0]), probabilities=probabilities, neighbors=np.array([[0]]))
    cases: tuple[tuple[str, dict[str, int]], ...] = (
        ("self_confidence", {}),
        ("margin", {}),
        ("smoothed_confidence", {"k": 1}),
    )
    for name, options in cases:
        values = SCORERS[name].values(inputs, **options)
        scored = ScoredImages(
            inputs=inputs, options=options, values=values, thresholds=np.full(1, 0.5), class_names=["cat", "dog"]
        )
        (reason,) = SCORERS[name].reasons(scored)
        assert re.search(rf"its label cat (only )?{re.escape(text)} %", reason)
        assert "e+" not in reason


def test_the_reason_of_margin_states_the_strongest_other_class() -> None:
    values = SCORERS["margin"].values(_BELIEFS)
    scored = ScoredImages(
        inputs=_BELIEFS, options={}, values=values, thresholds=np.full(3, 0.5), class_names=["cat", "dog", "ship"]
    )
    endings = [reason.rpartition(", ")[2] for reason in SCORERS["margin"].reasons(scored)]
    assert endings == [
        f"its strongest other class {points}" for points in ("50 points less", "50 points more", "25 points less")
    ]


def test_hdbscan_reason_follows_its_own_decision() -> None:
    values = np.array([0.25, 1.0, 1.5])
    inputs = ScorerInputs(labels=np.zeros(3, dtype=np.int64), components=np.zeros((3, 2), dtype=np.float32))
    scored = ScoredImages(
        inputs=inputs,
        options={"space": "components", "min_cluster_size": 5},
        values=values,
        thresholds=np.full(3, 1.0),
        class_names=["cat"],
    )
    reasons = SCORERS["hdbscan"].reasons(scored)
    assert [reason.startswith("in no cluster of 5 or more") for reason in reasons] == [False, False, True]
    assert reasons[0].endswith("with strength 0.75")


def test_the_networks_view_of_neighbors_counts_half() -> None:
    evidence = ScorerInputs(
        labels=np.array([0, 0, 2]),
        probabilities=_PROBABILITIES,
        neighbors=np.array([[1, 2], [2, 0], [0, 1]]),
    )
    values = SCORERS["smoothed_confidence"].values(evidence, k=2)
    # Of label 0 the others have 0.1 and 0.25, 0.25 and 0.7; of label 2 they have 0.1 and 0.3.
    expected = 1 - np.mean([[0.7, 0.1, 0.5], [0.175, 0.475, 0.2]], axis=0)
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    np.testing.assert_allclose(SCORERS["smoothed_confidence"].values(evidence, k=1)[0], 1 - (0.7 + 0.1) / 2, rtol=1e-6)


def test_neighbors_with_another_label_are_counted() -> None:
    neighbors = np.array([[1, 2, 3], [0, 2, 3], [3, 0, 1], [2, 1, 0]])
    evidence = ScorerInputs(labels=np.array([0, 0, 1, 2]), neighbors=neighbors)
    np.testing.assert_array_equal(SCORERS["knn_agreement"].values(evidence, k=2), [0.5, 0.5, 1, 1])
    np.testing.assert_allclose(SCORERS["knn_agreement"].values(evidence, k=3), [2 / 3, 2 / 3, 1, 1])


def test_distances_by_hand() -> None:
    line = np.array([[0.0], [1], [3], [100]])
    np.testing.assert_array_equal(distances.neighbor_distances(line, 1), [1, 1, 2, 97])
    np.testing.assert_array_equal(distances.neighbor_distances(line, 9), [100, 99, 97, 100])
    assert np.isnan(distances.neighbor_distances(line[:1], 3)).all()
    alone = ScorerInputs(labels=np.array([0, 0, 0, 1]), components=line.astype(np.float32))
    assert SCORERS["knn_distance"].values(alone, k=2).tolist() == [3, 2, 3, 3]
    evidence = ScorerInputs(labels=np.array([0, 0, 0, 1]), components=line.astype(np.float32))
    np.testing.assert_allclose(SCORERS["centroid"].values(evidence), [4 / 3, 1 / 3, 5 / 3, 0])


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_threshold_of_one_is_the_librarys_noise(seed: int) -> None:
    points = np.random.default_rng(seed).standard_t(2, size=(80, 2))
    actual = HDBSCAN(min_cluster_size=5, min_samples=4, allow_single_cluster=True, copy=True).fit(points)
    values = density.fit_hdbscan(points, 5, 4)["suspicion"]
    np.testing.assert_array_equal(values > 1, actual.labels_ == -1)
    assert values.max() <= 2


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), share=st.sampled_from([0.1, 0.25, 0.5]))
def test_the_grid_takes_its_share_of_every_cell_and_class(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    points, labels = rng.normal(size=(2000, 2)), rng.integers(0, 2, size=2000)
    evidence = ScorerInputs(labels=labels, embeddings=points[None])
    dropped = SCORERS["grid"].values(evidence, cells=3, seed=seed) > 1 - share
    low, extent = points.min(axis=0), np.ptp(points, axis=0)
    column, row = np.minimum((points - low) / extent * 3, 2).astype(int).T
    for cell in range(9):
        for label in range(2):
            inside = (row * 3 + column == cell) & (labels == label)
            assert abs(dropped[inside].sum() - share * inside.sum()) <= 1


def test_a_map_without_extent_is_one_cell() -> None:
    evidence = ScorerInputs(labels=np.zeros(10, dtype=np.int64), embeddings=np.zeros((1, 10, 2)))
    assert (SCORERS["grid"].values(evidence, cells=4, seed=0) > 0.5).sum() == 5


def test_ranks_by_hand() -> None:
    np.testing.assert_array_equal(relative_ranks(np.array([5.0, 1, np.inf, 5])), [0.5, 0, 1, 0.5])
    assert relative_ranks(np.array([3.0])).tolist() == [0.5]


def test_an_ensemble_is_the_mean_of_ranks_and_maps() -> None:
    rng = np.random.default_rng(0)
    evidence = ScorerInputs(
        labels=np.zeros(50, dtype=np.int64),
        embeddings=rng.normal(size=(3, 50, 2)),
        components=rng.normal(size=(50, 4)).astype(np.float32),
    )
    options = {"space": "embedding", "min_samples": 3}
    of = [{"name": "dbscan", **options}, {"name": "centroid"}]
    by_map = [relative_ranks(SCORERS["dbscan"].values(evidence.with_embedding(index), **options)) for index in range(3)]
    centroid = relative_ranks(SCORERS["centroid"].values(evidence))
    expected = (np.mean(by_map, axis=0) + centroid) / 2
    np.testing.assert_allclose(SCORERS["ensemble"].values(evidence, scorers=of), expected, rtol=1e-12)


def test_confident_learning_is_cleanlabs_decision() -> None:
    find_label_issues = pytest.importorskip("cleanlab.filter").find_label_issues
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, size=300)
    seen = np.where(rng.random(300) < 0.1, (labels + 1) % 3, labels)
    probabilities = np.full((300, 3), 0.1)
    probabilities[np.arange(300), seen] = 0.8
    evidence = ScorerInputs(labels=labels, probabilities=probabilities.astype(np.float32))
    values = SCORERS["confident_learning"].values(evidence)
    named = find_label_issues(labels, evidence.probabilities.astype(np.float64), n_jobs=1)  # type: ignore[union-attr]
    np.testing.assert_array_equal(values > 0.5, named)
    assert named.sum() == (seen != labels).sum()


def test_the_odds_use_the_mean_of_present_and_training_confidence() -> None:
    probabilities = np.array([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [1, 0, 0]], dtype=np.float32)
    trained = np.array([0.2, np.nan, 0], dtype=np.float32)
    evidence = ScorerInputs(labels=np.array([0, 1, 2]), probabilities=probabilities, training_confidence=trained)
    values = SCORERS["label_odds"].values(evidence)
    np.testing.assert_allclose(values, [0.3 / 0.4, 0.6 / 0.3, 1 / 1e-7], rtol=1e-5)


def test_with_folds_the_odds_are_out_of_fold() -> None:
    trained = np.array([1, 1, 1], dtype=np.float32)
    folds = np.array([0, 1, 1], dtype=np.int32)
    evidence = ScorerInputs(
        labels=_BELIEFS.labels, probabilities=_PROBABILITIES, training_confidence=trained, folds=folds
    )
    np.testing.assert_allclose(SCORERS["label_odds"].values(evidence), [0.2 / 0.7, 0.6 / 0.1, 0.25 / 0.5], rtol=1e-6)


def test_only_without_folds_the_odds_need_a_record_of_training() -> None:
    evidence = ScorerInputs(
        labels=_BELIEFS.labels, probabilities=_PROBABILITIES, folds=np.array([0, 1, 1], dtype=np.int32)
    )
    check_scorer(evidence, {"name": "label_odds"}, ("a", "b", "c"), "filter.scorer")
    assert np.isfinite(SCORERS["label_odds"].values(evidence)).all()
    with pytest.raises(InputError, match="label_odds needs training_confidence"):
        check_scorer(replace(evidence, folds=None), {"name": "label_odds"}, ("a", "b", "c"), "filter.scorer")


def test_mean_confidence_is_of_training_or_else_of_the_network() -> None:
    trained = np.array([0.2, np.nan, 1], dtype=np.float32)
    evidence = ScorerInputs(labels=_BELIEFS.labels, probabilities=_PROBABILITIES, training_confidence=trained)
    expected = 1 - np.array([0.2, _PROBABILITIES[1, 0], 1])
    np.testing.assert_allclose(SCORERS["mean_confidence"].values(evidence), expected, rtol=1e-6)
