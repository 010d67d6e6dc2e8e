"""The chosen radius does what was asked, and DBSCAN agrees with the prediction."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import HDBSCAN

from pipeline.scoring import density
from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.decision import DropFraction, FilterDecision, decide
from pipeline.scoring.thresholds import Allocation
from tests.fixtures.golden import check_golden


def _dbscan(min_samples: int) -> dict[str, Any]:
    return {"name": "dbscan", "space": "embedding", "min_samples": min_samples}


def _cloud(seed: int, n: int = 400) -> ScorerInputs:
    rng = np.random.default_rng(seed)
    # A map as `reduce` writes it, in single precision.
    coordinates = rng.standard_t(3, size=(n, 2)).astype(np.float32).astype(np.float64)
    return ScorerInputs(embeddings=coordinates[None], labels=np.arange(n) % 4)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0, 0.6))
def test_a_share_is_met_or_explained(seed: int, share: float) -> None:
    evidence = _cloud(seed, n=2000)
    decision = decide(evidence, _dbscan(5), DropFraction(fraction=share))
    np.testing.assert_array_equal(decision.is_noise, decision.values > decision.thresholds)
    np.testing.assert_array_equal(decision.is_noise, decision.scores > 0.5)
    assert (abs(decision.is_noise.mean() - share) <= 0.001) == (decision.share_note is None)


def test_the_paper_share_is_met_within_a_tenth_of_a_point() -> None:
    decision = decide(_cloud(0, 5000), _dbscan(5), DropFraction(fraction=0.0512))
    assert decision.is_noise.mean() == pytest.approx(0.0512, abs=0.001)
    assert decision.share_note is None


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), spacing=st.sampled_from([0.1, 1 / 3, 0.7, 1.0]), steps=st.integers(1, 3))
def test_an_eps_that_equals_distances_is_settled_by_dbscan(seed: int, spacing: float, steps: int) -> None:
    # A third of a lattice's places: distances are equal up to rounding, and equal eps.
    rng = np.random.default_rng(seed)
    lattice = np.stack(np.meshgrid(np.arange(12.0), np.arange(12.0)), axis=-1).reshape(-1, 2)
    coordinates = lattice[rng.random(len(lattice)) < 1 / 3] * spacing
    evidence = ScorerInputs(embeddings=coordinates[None], labels=np.zeros(len(coordinates), dtype=np.int64))
    decision = decide(evidence, _dbscan(4), steps * spacing)
    np.testing.assert_array_equal(decision.is_noise, decision.scores > 0.5)
    assert decision.share_note is None


def test_ties_out_of_reach_are_explained() -> None:
    # A dense trio of images, and 6 pairs whose members are equally far from anything.
    pairs = [[100.0 * i + side, 0] for i in range(1, 7) for side in (0, 1)]
    points = np.array([[0, 0], [0.1, 0], [0, 0.1], *pairs])
    evidence = ScorerInputs(embeddings=points[None], labels=np.zeros(len(points), dtype=np.int64))
    decision = decide(evidence, _dbscan(2), DropFraction(fraction=0.3))
    assert decision.is_noise.sum() == 0
    _check_note("share_note_ties.txt", decision)


def _check_note(name: str, decision: FilterDecision) -> None:
    check_golden(name, f"{decision.share_note}\n")


def test_images_that_the_scorer_rates_alike_are_explained() -> None:
    _check_note("share_note_rated_alike.txt", decide(_cloud(0, 40), _dbscan(1), DropFraction(fraction=0.3)))


def test_images_that_no_threshold_keeps_are_explained() -> None:
    """A fifth of the labels was never learned."""
    events = np.where(np.arange(40) % 5 == 0, np.inf, np.arange(40) % 3).astype(np.float32)
    inputs = ScorerInputs(
        labels=np.arange(40) % 2, probabilities=np.full((40, 2), 0.5, np.float32), training_forgetting=events
    )
    decision = decide(inputs, {"name": "forgetting"}, DropFraction(fraction=0.1))
    assert decision.is_noise.sum() == 8
    _check_note("share_note_infinite.txt", decision)


def test_few_images_are_explained() -> None:
    # Each image is twice as far from the one before as that from its own.
    line = ScorerInputs(
        embeddings=np.column_stack([2.0 ** np.arange(30), np.zeros(30)])[None], labels=np.zeros(30, np.int64)
    )
    _check_note("share_note_few_images.txt", decide(line, _dbscan(2), DropFraction(fraction=0.11)))


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0, 0.6), allocation=st.sampled_from(["per_class", "balanced"]))
def test_quotas_give_each_class_a_radius_and_dbscan_agrees(seed: int, share: float, allocation: Allocation) -> None:
    evidence = _cloud(seed, n=600)
    decision = decide(evidence, _dbscan(5), DropFraction(fraction=share, allocation=allocation))
    np.testing.assert_array_equal(decision.is_noise, decision.clusters == -1)
    np.testing.assert_array_equal(decision.is_noise, decision.scores > 0.5)
    for label in range(4):
        rows = evidence.labels == label
        assert len(set(decision.thresholds[rows])) == 1
        # Mutual nearest neighbors share a radius, so that a class may miss its allocation by a few images.
        assert decision.is_noise[rows].sum() == pytest.approx(share * rows.sum(), abs=5)


@pytest.mark.parametrize("rule", [1.0, DropFraction(fraction=0.1)], ids=str)
def test_hdbscan_is_fitted_once_per_class(rule: DropFraction | float, monkeypatch: pytest.MonkeyPatch) -> None:
    fits = []

    class Counted(HDBSCAN):  # type: ignore[misc]
        def fit(self, points: np.ndarray) -> HDBSCAN:
            fits.append(len(points))
            return super().fit(points)

    monkeypatch.setattr(density, "HDBSCAN", Counted)
    evidence = _cloud(0)
    scorer = {"name": "hdbscan", "space": "embedding", "min_cluster_size": 10, "min_samples": 5}
    decision = decide(evidence, scorer, rule)
    assert fits == [100] * 4
    for label in range(4):
        rows = evidence.labels == label
        expected = HDBSCAN(min_cluster_size=10, min_samples=5, allow_single_cluster=True, copy=True)
        np.testing.assert_array_equal(decision.clusters[rows], expected.fit(evidence.points("embedding")[rows]).labels_)


def test_a_threshold_is_taken_at_its_word() -> None:
    labels = np.array([0, 0, 1, 1])
    probabilities = np.array([[0.9, 0.1], [0.3, 0.7], [0.5, 0.5], [0.05, 0.95]], dtype=np.float32)
    evidence = ScorerInputs(labels=labels, probabilities=probabilities)
    decision = decide(evidence, {"name": "self_confidence"}, 0.5)
    assert decision.is_noise.tolist() == [False, True, False, False]
    assert decision.clusters.tolist() == [0, -1, 0, 0]
    assert decision.scores[2] == 0.5
