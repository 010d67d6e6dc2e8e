"""The matrix of labels against suggested labels: its cells count and select."""

import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dash import html, no_update
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.dash_components import all_of, text_of
from tests.fixtures.projects import NETWORK
from tests.fixtures.view import points_of, source_of
from viz.callbacks.embedding import MapControls
from viz.callbacks.matrix import MAX_CLASSES, MAX_PAIRS, matrix, pair_counts, select_cell
from viz.data import Points, Source

_HERE = MapControls(network=NETWORK)


def _cells(component: Any) -> dict[tuple[int, int], int]:
    """Return the numbers on the buttons by label and suggested label."""
    buttons = [button.to_plotly_json()["props"] for button in all_of(component, html.Button)]
    return {
        (int(button["data-label"]), int(button["data-suggested"])): int(button["children"].replace(",", ""))
        for button in buttons
    }


def _cell(points: Points, label: Any, suggested: Any) -> dict[str, Any]:
    return {"label": label, "suggested": suggested, "generation": points.generation, "at": 1}


@pytest.mark.parametrize("map_controls", [_HERE, MapControls(network=NETWORK, classes=[1, 2], scores=[0.5, 1])])
def test_a_cell_selects_as_many_images_as_it_says(source: Source, points: Points, map_controls: MapControls) -> None:
    cells = _cells(matrix(source, map_controls))
    assert sum(cells.values()) == map_controls.state(source).shown.sum()
    for (label, suggested), n in cells.items():
        selection = select_cell(source, map_controls, _cell(points, label, suggested))
        assert len(selection["rows"]) == n
        assert set(points.labels[selection["rows"]]) == {label}
        assert set(points.predicted[selection["rows"]]) == {suggested}


@given(n_classes=st.integers(MAX_CLASSES + 1, 40))
def test_of_many_classes_the_most_frequent_pairs_are_listed(n_classes: int) -> None:
    rng = np.random.default_rng(n_classes)
    labels, predicted = rng.integers(0, n_classes, (2, 500))
    points = replace(points_of(np.zeros((500, 2)), labels, n_classes=n_classes), predicted=predicted)
    here = MapControls(network="made-up")
    cells = _cells(matrix(source_of(points), here))
    counts = Counter(pair for pair in zip(labels.tolist(), predicted.tolist(), strict=True) if pair[0] != pair[1])
    assert list(cells.values()) == sorted(counts.values(), reverse=True)[:MAX_PAIRS]
    assert all(counts[pair] == n for pair, n in cells.items())


def test_memory_does_not_grow_with_the_square_of_the_classes() -> None:
    labels = np.arange(3000)
    points = replace(points_of(np.zeros((3000, 2)), labels), predicted=np.roll(labels, 1))
    here = MapControls(network="made-up")
    source = source_of(points)
    assert len(pair_counts(here.state(source))) == 3000
    tracemalloc.start()
    cells = _cells(matrix(source, here))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(cells.values()) == [1] * MAX_PAIRS
    assert peak < 10_000_000


def test_without_a_differing_label_the_page_says_so() -> None:
    source = source_of(points_of(np.zeros((20, 2)), np.arange(20)))
    assert "is its label" in text_of(matrix(source, MapControls(network="made-up")))


def test_a_cell_of_replaced_files_or_of_no_class_selects_nothing(source: Source, points: Points) -> None:
    stale = _cell(points, 0, 0) | {"generation": "resnet18 old"}
    cells: list[Any] = [None, 7, {}, stale, _cell(points, "0", 0), _cell(points, True, 0), _cell(points, None, None)]
    for cell in cells:
        assert select_cell(source, _HERE, cell) is no_update
    assert select_cell(source, _HERE, _cell(points, 99, 0))["rows"] == []


def test_hostile_class_names_are_text(source: Source, points: Points) -> None:
    assert points.class_names[0] in text_of(matrix(source, _HERE))


def test_without_artifacts_there_is_no_matrix(source: Source) -> None:
    assert matrix(source, MapControls(network="resnet34")) is None
