from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from plotly import graph_objects as go

from pipeline.figures.embeddings import (
    POINTS,
    RING,
    explorer_map,
    map_frame,
    marker,
    no_map,
    recolored,
    ring_at,
    rows_to_draw,
)
from pipeline.figures.palette import CHOSEN
from pipeline.figures.style import Groups, Scale

_XY = np.array([[0.0, 0.0], [1.0, 2.0], [3.0, -1.0], [4.0, 5.0]])
_ALL = np.arange(4)
_GROUPS = Groups(codes=np.array([0, 1, 1, 2]), names=("a", "b", "c"), colors=("#111111", "#222222", "#111111"))
_SCALE = Scale(values=np.array([0.0, 0.25, 0.5, 1.0]), name="score")

_SEEDS = st.integers(0, 2**16)


def _case(n: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    rng = np.random.default_rng(seed)
    return rng.random((n, 2)), rng.random(n), rng.random(n) < 0.8


@given(n=st.integers(1, 200), at_most=st.integers(1, 250), seed=_SEEDS)
def test_rows_to_draw_are_shown_ones_with_the_most_suspect_last(n: int, at_most: int, seed: int) -> None:
    xy, scores, shown = _case(n, seed)
    rows = rows_to_draw(xy, scores, shown, at_most=at_most)
    assert len(rows) == min(at_most, shown.sum())
    assert shown[rows].all()
    assert len(set(rows.tolist())) == len(rows)
    assert (np.diff(scores[rows]) >= 0).all()
    np.testing.assert_array_equal(rows, rows_to_draw(xy, scores, shown, at_most=at_most))


@given(n=st.integers(1, 200), at_most=st.integers(2, 250), seed=_SEEDS)
def test_what_goes_is_always_drawn_up_to_half(n: int, at_most: int, seed: int) -> None:
    xy, scores, shown = _case(n, seed)
    rows = rows_to_draw(xy, scores, shown, at_most=at_most)
    goes = np.flatnonzero(shown & (scores > 0.5))
    if len(goes) <= at_most // 2:
        assert set(goes.tolist()) <= set(rows.tolist())
    else:
        suspect = goes[np.argsort(-scores[goes])][: at_most // 2]
        assert set(suspect.tolist()) <= set(rows.tolist())


@given(n=st.integers(1, 200), at_most=st.integers(1, 100), seed=_SEEDS, ends=st.tuples(*[st.floats(0, 1)] * 4))
def test_every_shown_point_of_a_small_box_is_drawn(n: int, at_most: int, seed: int, ends: tuple[float, ...]) -> None:
    xy, scores, shown = _case(n, seed)
    box = ((min(ends[:2]), max(ends[:2])), (min(ends[2:]), max(ends[2:])))
    low, high = np.transpose(box)
    inside = shown & (xy >= low).all(axis=1) & (xy <= high).all(axis=1)
    rows = rows_to_draw(xy, scores, shown, box=box, at_most=at_most)
    assert len(rows) <= at_most
    assume(inside.sum() <= at_most)
    assert set(np.flatnonzero(inside).tolist()) <= set(rows.tolist())


def test_the_sample_of_what_stays_does_not_change_with_what_goes() -> None:
    """Points that flicker while a slider moves would hide what the slider does."""
    xy, scores, shown = _case(2000, 0)
    shown[:] = True
    before = rows_to_draw(xy, scores * 0.5, shown, at_most=400)
    scores[np.argsort(scores)[-20:]] *= 2
    after = rows_to_draw(xy, scores * 0.5, shown, at_most=400)
    assert len(set(before.tolist()) & set(after.tolist())) >= 360


def test_each_point_names_its_row_and_lies_in_its_place() -> None:
    rows = np.array([3, 0, 2])
    trace = explorer_map(_XY, rows, _GROUPS, view="a").data[POINTS]
    assert list(trace.customdata) == [3, 0, 2]
    np.testing.assert_array_equal(np.column_stack([trace.x, trace.y]), _XY[rows])


def _colors_of(look: Any) -> list[str]:
    """The color of each point, as plotly works it out."""
    steps = look["colorscale"]
    span = look["cmax"] - look["cmin"]
    shares = (np.asarray(look["color"], dtype=float) - look["cmin"]) / span
    return [
        next(color for (low, color), (high, _) in zip(steps[::2], steps[1::2], strict=True) if low <= share < high)
        for share in shares
    ]


@given(n=st.integers(1, 60), k=st.integers(1, 200), seed=_SEEDS, distinct=st.integers(1, 40))
def test_every_point_has_the_color_of_its_group(n: int, k: int, seed: int, distinct: int) -> None:
    rng = np.random.default_rng(seed)
    colors = [f"#{rng.integers(distinct):06x}" for _ in range(k)]
    groups = Groups(codes=rng.integers(0, k, n), names=[f"{index}" for index in range(k)], colors=colors)
    rows = rng.permutation(n)[: max(1, n // 2)]
    look = marker(groups, rows)
    assert look["color"].dtype == np.uint8
    assert _colors_of(look) == [colors[code] for code in groups.codes[rows]]


def test_a_scale_goes_from_0_to_1_whatever_is_drawn() -> None:
    look = marker(_SCALE, np.array([2, 1]))
    assert (look["cmin"], look["cmax"]) == (0, 1)
    assert look["color"].tolist() == [0.5, 0.25]


@pytest.mark.parametrize("colors", [_GROUPS, _SCALE])
def test_recolored_map_equals_a_new_one(colors: Groups | Scale) -> None:
    whole = explorer_map(_XY, _ALL, colors, view="a").to_dict()["data"][POINTS]["marker"]
    patched = explorer_map(_XY, _ALL, _GROUPS, view="a").to_dict()
    patched["data"][POINTS]["marker"] = recolored(colors, _ALL)
    again = go.Figure(patched).to_dict()["data"][POINTS]["marker"]
    assert again == whole
    assert not {"x", "y", "customdata"} & recolored(colors, _ALL).keys()


def test_filtering_moves_no_place() -> None:
    whole, part = (explorer_map(_XY, rows, _GROUPS, view="a") for rows in (_ALL, _ALL[1:2]))
    assert whole.layout.xaxis.range == part.layout.xaxis.range
    assert whole.layout.yaxis.range == part.layout.yaxis.range


def test_zoom_stays_within_a_view_and_marks_with_the_same_images() -> None:
    layouts = [
        explorer_map(_XY, rows, _GROUPS, view=view).layout for rows, view in ((_ALL, "a"), (_ALL[:2], "a"), (_ALL, "b"))
    ]
    assert [layout.uirevision for layout in layouts] == ["a", "a", "b"]
    whole, part, again = [layout.selectionrevision for layout in layouts]
    assert whole == again != part


def test_points_in_one_place_have_a_range() -> None:
    low, high = explorer_map(np.zeros((4, 2)), _ALL, _GROUPS, view="a").layout.xaxis.range
    assert low < 0 < high


def test_the_ring_is_around_the_chosen_image_or_nowhere() -> None:
    ring = map_frame(_XY, _ALL, _GROUPS, view="a", ring=3).data[RING]
    assert (ring.x, ring.y, ring.marker.color) == ((4.0,), (5.0,), CHOSEN)
    for nowhere in (None, 4, -1):
        assert ring_at(_XY, nowhere) == {"x": [], "y": []}


def test_no_map_has_the_traces_that_are_patched() -> None:
    assert len(no_map().data) == len(explorer_map(_XY, _ALL, _GROUPS, view="a").data)
