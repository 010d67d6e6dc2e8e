"""Wording."""

import numpy as np
import pytest

from pipeline.scoring.base import ScorerInputs, format_distinct, override_reason, suggestion_phrases
from pipeline.scoring.suggestions import suggest_labels
from pipeline.scoring.votes import neighbor_phrases


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (2.60001, 2.6, ("2.60001", "2.6")),
        (2.6 + 1e-9, 2.6, ("2.600000001", "2.6")),
        (2.6, 2.6, ("2.6", "2.6")),
        (3.14159, 2.6, ("3.14", "2.6")),
        (np.inf, 2.6, ("inf", "2.6")),
    ],
)
def test_numbers_that_differ_look_different(left: float, right: float, expected: tuple[str, str]) -> None:
    assert format_distinct(left, right) == expected


def test_another_label_is_suggested_where_the_network_disagrees() -> None:
    phrases = suggestion_phrases(np.array([0, 1]), np.array([0.9, 0.914]), np.array([0, 0]), ["cat", "dog"])
    assert phrases == ["", "suggested label: dog (91 %)"]


def test_neighbors_are_named() -> None:
    labels = np.array([0, 1, 1, 2, 0])
    neighbors = np.array([[1, 2, 3], [2, 0, 3], [1, 1, 0], [0, 4, 3], [0, 1, 2]])
    assert neighbor_phrases(neighbors, labels, ["cat", "dog, red", "cow"]) == [
        "2 of 3 nearest neighbors are dog, red",
        "1 of 3 nearest neighbors share its label",  # three ways to draw
        "2 of 3 nearest neighbors share its label",
        "2 of 3 nearest neighbors are cat",
        "2 of 3 nearest neighbors are dog, red",
    ]


def test_by_hand() -> None:
    assert override_reason("keep", "a fine cat") == "kept by hand: a fine cat"
    assert override_reason("drop", "") == "dropped by hand"


def test_in_a_tie_the_class_of_the_nearest_is_named_and_suggested() -> None:
    labels = np.array([0, 1, 1, 2, 2])
    neighbors = np.array([[3, 1, 4, 2], [0, 2, 3, 4], [0, 1, 3, 4], [0, 1, 2, 4], [0, 1, 2, 3]])
    suggestion = suggest_labels(ScorerInputs(labels=labels, neighbors=neighbors))
    assert suggestion is not None
    assert suggestion.labels[0] == 2
    assert neighbor_phrases(neighbors, labels, ["cat", "dog", "cow"])[0] == "2 of 4 nearest neighbors are cow"
