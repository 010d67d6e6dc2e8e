import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viz.figures.explorer import COLORINGS, explorer_map
from viz.figures.palette import SERIES

_XY = np.array([[0.0, 0.0], [1.0, 2.0], [3.0, -1.0], [4.0, 5.0]])
_LABELS = np.array([0, 1, 1, 0])
_KEEP = np.array([True, False, True, True])


@given(
    n=st.integers(1, 40),
    classes=st.integers(1, 30),
    coloring=st.sampled_from(sorted(COLORINGS)),
    seed=st.integers(0, 99),
)
def test_every_image_is_one_point(n: int, classes: int, coloring: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    xy, labels = rng.normal(size=(n, 2)), rng.integers(0, classes, n)
    names = [f"class {index}" for index in range(classes)]
    figure = explorer_map(xy, labels, rng.random(n) < 0.8, names, coloring=coloring, view="a")
    assert sorted(row for trace in figure.data for row in trace.customdata) == list(range(n))
    assert len(figure.data) <= 20
    for trace in figure.data:
        np.testing.assert_array_equal(trace.x, xy[list(trace.customdata), 0].astype(np.float32))
        np.testing.assert_array_equal(trace.y, xy[list(trace.customdata), 1].astype(np.float32))


def test_decisions_have_two_colours_and_what_goes_lies_above() -> None:
    figure = explorer_map(_XY, _LABELS, _KEEP, ["a", "b"], coloring="decision", view="a")
    told = [(trace.name, list(trace.customdata), trace.marker.color) for trace in figure.data]
    assert told == [("kept", [0, 2, 3], SERIES[0]), ("dropped", [1], SERIES[1])]


def test_one_class_stays_in_its_place() -> None:
    whole = explorer_map(_XY, _LABELS, _KEEP, ["a", "b"], coloring="class", view="a")
    part = explorer_map(_XY, _LABELS, _KEEP, ["a", "b"], coloring="class", only_class=1, view="a")
    assert [list(trace.customdata) for trace in part.data] == [[1, 2]]
    assert part.layout.xaxis.autorangeoptions.include == whole.layout.xaxis.autorangeoptions.include
    assert part.layout.yaxis.autorangeoptions.include == whole.layout.yaxis.autorangeoptions.include


@pytest.mark.parametrize("coloring", COLORINGS)
def test_what_is_hidden_stays_so_within_a_view_alone(coloring: str) -> None:
    views = [
        explorer_map(_XY, _LABELS, keep, ["a", "b"], coloring=coloring, view=view).layout.uirevision
        for keep, view in ((_KEEP, "resnet18"), (~_KEEP, "resnet18"), (_KEEP, "resnet34"))
    ]
    assert views == ["resnet18", "resnet18", "resnet34"]


def test_names_are_no_markup() -> None:
    figure = explorer_map(_XY, _LABELS, _KEEP, ["<b>a</b>", "b"], coloring="class", view="a")
    assert figure.data[0].name == "&lt;b&gt;a&lt;/b&gt;"


def test_points_in_one_place_have_a_range() -> None:
    figure = explorer_map(np.zeros((4, 2)), _LABELS, _KEEP, ["a", "b"], coloring="class", view="a")
    low, high = figure.layout.xaxis.autorangeoptions.include
    assert low < 0 < high
