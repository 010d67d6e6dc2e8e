"""Search by path, class and reason."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.view import points_of, rows_of, source_of
from viz.callbacks.embedding import MapControls
from viz.callbacks.gallery import browse
from viz.data import Points, Source
from viz.search import matching, parse_query


@pytest.fixture
def points() -> Points:
    return replace(
        points_of(np.zeros((4, 2)), np.array([0, 1, 1, 2])),
        paths=pa.chunked_array([["train/Anna/1.png", "train/bear/2.png"], ["extra/bear/3.png", "extra/(x)/4.png"]]),
        reasons=pa.chunked_array([["near a bear", None, "isolated", "network sees cat 50 %"]]),
        class_names=("cat", "polar bear", "dog"),
    )


@pytest.fixture
def source(points: Points) -> Source:
    return source_of(points)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", [0, 1, 2, 3]), ("  ", [0, 1, 2, 3]), ("bear", [0, 1, 2]), ("BEAR extra", [2]), ("class:cat", [0]),
        ("reason:cat", [3]), ('class:"polar bear"', [1, 2]), ('Class:"POLAR BEAR" path:train', [1]), ("path:anna", [0]),
        ("(x)", [3]), (".*", []), ("50 %", [3]), ("reason:bear", [0]), ("size:big", []), ('"', []), ("path:", []),
    ],
)  # fmt: skip
def test_all_words_must_match_in_any_field_or_the_named_one(
    source: Source, points: Points, query: str, expected: list[int]
) -> None:
    assert np.flatnonzero(matching(source, points, query)).tolist() == expected


@given(query=st.text(max_size=300))
def test_any_text_is_a_query(query: str) -> None:
    points = points_of(np.zeros((3, 2)), np.array([0, 1, 1]))
    assert matching(source_of(points), points, query).shape == (3,)
    assert all(word.text for word in parse_query(query))


def test_list_and_map_show_what_matches(source: Source) -> None:
    grid: Any = browse(source, MapControls(network="made-up", search="bear"), "shown", "class", 0)["grid"]
    assert sorted(rows_of(grid)) == [0, 1, 2]
