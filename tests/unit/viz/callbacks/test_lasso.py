"""Selections on maps that draw only some points."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.fixtures.view import points_of, source_of
from viz.callbacks.embedding import MapControls
from viz.callbacks.lasso import LassoShapes, inside_lasso, selected_inside
from viz.data import Points, Source

# Of 16 bits: the outline is computed in 64 bits, where a point 1e-286 above an edge is on it.
_UNIT = st.floats(0, 1, width=16, allow_subnormal=False)


@given(places=st.lists(st.tuples(_UNIT, _UNIT), max_size=30), ends=st.tuples(*[_UNIT] * 4))
def test_a_box_holds_what_lies_between_its_ends(
    places: list[tuple[float, float]], ends: tuple[float, float, float, float]
) -> None:
    xy = np.array(places).reshape(-1, 2)
    x0, x1, y0, y1 = ends
    found = inside_lasso(xy, [[(x0, y0), (x1, y0), (x1, y1), (x0, y1)]])
    (left, right), (bottom, top) = sorted((x0, x1)), sorted((y0, y1))
    within = (xy[:, 0] > left) & (xy[:, 0] < right) & (xy[:, 1] > bottom) & (xy[:, 1] < top)
    on_an_edge = np.isin(xy[:, 0], (left, right)) | np.isin(xy[:, 1], (bottom, top))
    np.testing.assert_array_equal(found[~on_an_edge], within[~on_an_edge])


def test_outlines_need_not_be_convex_and_add_up() -> None:
    notched = [(0, 0), (4, 0), (4, 4), (2, 1), (0, 4)]
    far = [(9, 9), (11, 9), (10, 11)]
    xy = np.array([[2, 0.5], [2, 3], [0.5, 2], [10, 10], [8, 8]])
    np.testing.assert_array_equal(inside_lasso(xy, [notched, far]), [True, False, True, True, False])
    assert not inside_lasso(xy, []).any()
    assert not inside_lasso(xy, [[]]).any()


@pytest.fixture
def points() -> Points:
    rng = np.random.default_rng(0)
    return points_of(rng.random((500, 2)), np.arange(500) % 3, values=rng.random(500), thresholds=np.full(500, 0.9))


@pytest.fixture
def source(points: Points) -> Source:
    return source_of(points)


def _around(points: Points, **changed: Any) -> LassoShapes:
    middle = [(0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75)]
    return LassoShapes.model_validate({"generation": points.generation, "graph": "map", "outlines": [middle]} | changed)


def test_all_images_inside_are_selected_of_those_shown(source: Source, points: Points) -> None:
    map_controls = MapControls(network="made-up", classes=[0, 2])
    middle = ((points.coordinates > 0.25) & (points.coordinates < 0.75)).all(axis=1)
    for graph in ("map", "other"):
        selection = selected_inside(source, map_controls, _around(points, graph=graph))
        assert selection["rows"] == np.flatnonzero(middle & (points.labels != 1)).tolist()
        assert (selection["graph"], selection["generation"]) == (graph, points.generation)


def test_nothing_is_selected_from_replaced_files(source: Source, points: Points) -> None:
    for generation in (None, "made-up of yesterday", "unknown x"):
        selection = selected_inside(source, MapControls(network="made-up"), _around(points, generation=generation))
        assert selection["rows"] == []


@pytest.mark.parametrize(
    "outlines", [5, [None], [[[1, 2, 3]]], [[["a", 1]]], [[[10**400, 0]]], [[[float("nan"), 0]]], [[[0, 0]]] * 101]
)
def test_invalid_shapes_are_rejected(points: Points, outlines: Any) -> None:
    with pytest.raises(ValidationError):
        _around(points, outlines=outlines)
