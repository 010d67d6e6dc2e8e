"""The suggested label: the most probable class, or the vote of the neighbors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.suggestions import suggest_labels
from pipeline.scoring.votes import neighbor_vote

_NEIGHBORS = np.array([[1, 2, 3], [2, 0, 3], [1, 3, 0], [0, 1, 2]])
_LABELS = np.array([0, 1, 1, 2])


def test_probabilities_decide_where_there_are_some() -> None:
    probabilities = np.array([[0.2, 0.5, 0.3], [0.1, 0.8, 0.1], [0.6, 0.4, 0], [0, 0.1, 0.9]], dtype=np.float32)
    suggested = suggest_labels(ScorerInputs(labels=_LABELS, probabilities=probabilities, neighbors=_NEIGHBORS))
    assert suggested is not None
    assert suggested.labels.tolist() == [1, 1, 0, 2]
    np.testing.assert_array_equal(suggested.probabilities, probabilities.max(axis=1))


def test_in_a_tie_of_probabilities_the_label_wins() -> None:
    probabilities = np.array([[0.4, 0.4, 0.2], [0.5, 0.5, 0], [0.5, 0, 0.5], [0.2, 0.6, 0.2]], dtype=np.float32)
    suggested = suggest_labels(ScorerInputs(labels=_LABELS, probabilities=probabilities))
    assert suggested is not None
    assert suggested.labels.tolist() == [0, 1, 0, 1]
    np.testing.assert_array_equal(suggested.probabilities, probabilities.max(axis=1))


def test_neighbors_vote_where_there_are_no_probabilities() -> None:
    suggested = suggest_labels(ScorerInputs(labels=_LABELS, neighbors=_NEIGHBORS))
    assert suggested is not None
    # The neighbors of image 1 have three labels, of which one is its label.
    assert suggested.labels.tolist() == [1, 1, 1, 1]
    np.testing.assert_allclose(suggested.probabilities, [2 / 3, 1 / 3, 1 / 3, 2 / 3])


@pytest.mark.parametrize(
    "inputs",
    [
        ScorerInputs(labels=_LABELS),
        ScorerInputs(labels=np.zeros(4, dtype=np.int64), neighbors=_NEIGHBORS),
        ScorerInputs(labels=np.zeros(4, dtype=np.int64), probabilities=np.ones((4, 1), dtype=np.float32)),
    ],
)
def test_nothing_is_suggested_without_evidence(inputs: ScorerInputs) -> None:
    assert suggest_labels(inputs) is None


def _vote(own: int, votes: list[int]) -> int:
    most = max(votes.count(label) for label in votes)
    return own if votes.count(own) == most else next(label for label in votes if votes.count(label) == most)


@given(
    n=st.integers(1, 60),
    classes=st.integers(1, 1000),
    k=st.integers(1, 12) | st.integers(60, 70),
    seed=st.integers(0, 2**32 - 1),
)
def test_votes_are_those_of_a_plain_loop(n: int, classes: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, neighbors = rng.integers(0, classes, n), rng.integers(0, n, (n, k))
    expected = [_vote(int(labels[row]), labels[neighbors[row]].tolist()) for row in range(n)]
    assert neighbor_vote(neighbors, labels).tolist() == expected
