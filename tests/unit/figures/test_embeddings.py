import io

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from pipeline.figures.embeddings import class_map, colored_map, name_places
from pipeline.figures.rendering import png
from pipeline.figures.style import Groups, Scale, class_color


def colors(file: bytes) -> set[tuple[int, ...]]:
    """Colors that cover at least a few pixels; edges are blends."""
    pixels = np.asarray(Image.open(io.BytesIO(file)).convert("RGB")).reshape(-1, 3)
    found, counts = np.unique(pixels, axis=0, return_counts=True)
    return {tuple(int(v) for v in color) for color, n in zip(found, counts, strict=True) if n >= 8}


def rgb(color: str) -> tuple[int, ...]:
    return tuple(int(color[at : at + 2], 16) for at in (1, 3, 5))


@pytest.fixture
def xy() -> NDArray[np.float64]:
    return np.random.default_rng(0).normal(size=(200, 2))


def test_noise_is_grey_and_the_rest_has_its_class_color(xy: NDArray[np.float64]) -> None:
    labels = np.arange(200) % 2
    noise = labels == 1
    found = colors(png(class_map(xy, labels, ["a", "b"], noise, legend=False)))
    assert rgb(class_color(0)) in found
    assert rgb(class_color(1)) not in found
    greys = {color for color in found if len(set(color)) == 1}
    assert greys - {(255, 255, 255)}


@pytest.mark.slow
def test_without_noise_all_classes_are_colored(xy: NDArray[np.float64]) -> None:
    found = colors(png(class_map(xy, np.arange(200) % 2, ["a", "b"], legend=False)))
    assert {rgb(class_color(0)), rgb(class_color(1))} <= found


def test_the_legend_names_every_class_even_hostile_ones(xy: NDArray[np.float64]) -> None:
    names = ["$\\frac{", "_hidden", "<b>"]
    figure = class_map(xy, np.arange(200) % 3, names, np.zeros(200, dtype=bool))
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text().strip() for text in legend.get_texts()] == [*names, "noise"]
    assert png(figure)


@pytest.mark.parametrize("n", [10, 11, 100])
def test_a_legend_names_classes_only_where_each_has_its_own_color(xy: NDArray[np.float64], n: int) -> None:
    names, labels = [str(index) for index in range(n)], np.arange(200) % n
    groups = Groups(codes=labels, names=names, colors=[class_color(index) for index in range(n)])
    for figure in (class_map(xy, labels, names), colored_map(xy, groups, labels == 0)):
        assert (figure.axes[0].get_legend() is None) == (n > 10)


def test_fifty_thousand_points_stay_small() -> None:
    rng = np.random.default_rng(0)
    file = png(class_map(rng.normal(size=(50_000, 2)), rng.integers(0, 10, 50_000), list("abcdefghij")))
    assert len(file) < 1_500_000


def test_a_map_of_no_points_can_be_drawn() -> None:
    assert png(class_map(np.empty((0, 2)), np.empty(0, dtype=int), ["a"], np.empty(0, dtype=bool)))


@pytest.mark.slow
def test_groups_have_colors_and_only_those_with_members_a_name(xy: NDArray[np.float64]) -> None:
    groups = Groups(codes=np.arange(200) % 2 * 2, names=["_a", "none", "$c$"], colors=["#112233", "#445566", "#778899"])
    figure = colored_map(xy, groups, np.arange(200) < 5)
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text().strip() for text in legend.get_texts()] == ["_a", "$c$"]
    found = colors(png(figure))
    assert {rgb("#112233"), rgb("#778899")} <= found
    assert rgb("#445566") not in found


@pytest.mark.slow
def test_what_is_drawn_above_hides_what_lies_below() -> None:
    xy = np.repeat([[0.0, 0.0], [1.0, 1.0]], 2, axis=0)
    groups = Groups(codes=np.array([0, 1, 0, 1]), names=["low", "high"], colors=["#112233", "#778899"])
    for above in (0, 1):
        figure = colored_map(xy, groups, groups.codes == above)
        legend = figure.axes[0].get_legend()
        assert legend is not None
        legend.remove()
        found = colors(png(figure))
        assert rgb(groups.colors[above]) in found
        assert rgb(groups.colors[1 - above]) not in found


def test_a_map_has_its_title_and_class_names_at_their_points(xy: NDArray[np.float64]) -> None:
    labels, names = np.arange(200) % 2 * 2, ["$a$", "none", "_c"]
    groups = Groups(codes=labels, names=names, colors=["#112233", "#445566", "#778899"])
    places = name_places(xy, labels, names)
    axes = colored_map(xy, groups, labels == 0, title="resnet18: class", names=places).axes[0]
    assert axes.get_title(loc="left") == "resnet18: class"
    assert [text.get_text() for text in axes.texts] == ["$a$", "_c"]
    for text, label in zip(axes.texts, (0, 2), strict=True):
        np.testing.assert_allclose(text.get_position(), np.median(xy[labels == label], axis=0))


def test_more_names_than_fit_are_left_out(xy: NDArray[np.float64]) -> None:
    assert name_places(xy, np.arange(200) % 31, [str(label) for label in range(31)]) == []
    assert len(name_places(xy, np.arange(200) % 30, [str(label) for label in range(30)])) == 30


def test_a_scale_goes_from_nought_to_one_whatever_the_values(xy: NDArray[np.float64]) -> None:
    figure = colored_map(xy, Scale(values=np.full(200, 0.5), name="score"), np.zeros(200, dtype=bool))
    _, bar = figure.axes
    assert bar.get_ylabel() == "score"
    assert bar.get_ylim() == (0, 1)
