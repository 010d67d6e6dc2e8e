"""Wording."""

import numpy as np
import pytest

from pipeline.selection.reasons import by_hand, dbscan_reason, neighbour_phrases


def test_isolated() -> None:
    assert dbscan_reason(3.1, 2.6, is_noise=True) == "isolated on the map: joins a cluster only at eps 3.1, used 2.6"


def test_clustered() -> None:
    assert dbscan_reason(1.25, 2.6, is_noise=False).endswith("joins it at eps 1.25, used 2.6")


@pytest.mark.parametrize(("radius", "words"), [(2.60001, "2.60001, used 2.6"), (2.6 + 1e-9, "2.600000001, used 2.6")])
def test_numbers_that_differ_look_different(radius: float, words: str) -> None:
    assert dbscan_reason(radius, 2.6, is_noise=True).endswith(words)


def test_equal_numbers_stay_short() -> None:
    assert dbscan_reason(2.6, 2.6, is_noise=False).endswith("2.6, used 2.6")


def test_neighbours_are_named() -> None:
    labels = np.array([0, 1, 1, 2, 0])
    neighbours = np.array([[1, 2, 3], [2, 0, 3], [1, 1, 0], [0, 4, 3], [0, 1, 2]])
    assert neighbour_phrases(neighbours, labels, ["cat", "dog, red", "cow"]) == [
        "2 of 3 nearest neighbours are dog, red",
        "1 of 3 nearest neighbours share its label",  # three ways to draw
        "2 of 3 nearest neighbours share its label",
        "2 of 3 nearest neighbours are cat",
        "2 of 3 nearest neighbours are dog, red",
    ]


def test_by_hand() -> None:
    assert by_hand("keep", "a fine cat") == "kept by hand: a fine cat"
    assert by_hand("drop", "") == "dropped by hand"
