"""Figures by class: differences, panels, and shares of noise."""

from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.patches import Rectangle

from pipeline.figures.classes import (
    MAX_PANELS,
    class_difference_figure,
    class_panels,
    class_share_chart,
    class_share_figure,
    eps_chart,
    eps_figure,
    noisiest_classes,
)
from pipeline.figures.rendering import png, svg
from pipeline.stats.estimates import Estimate


def _estimate(mean: float, half: float | None) -> Estimate:
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Estimate(n=3, mean=mean, sd=half, low=low, high=high)


def _bars(axes: Any) -> list[Any]:
    return [one.get_segments() for one in axes.collections if isinstance(one, LineCollection)]


def test_each_control_has_a_marker_and_a_bar_on_every_row() -> None:
    differences = {"full": [_estimate(1.0, 0.5), _estimate(-2.0, 1.0)], "random": [_estimate(0.0, 2.0)] * 2}
    (axes,) = class_difference_figure(["cat", "worst class"], differences).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "worst class"]
    assert axes.yaxis_inverted()
    assert axes.get_legend_handles_labels()[1] == ["filtered − full", "filtered − random"]
    full, random = _bars(axes)
    assert np.concatenate(full)[:, 0] == pytest.approx([0.5, 1.5, -3.0, -1.0])
    assert np.concatenate(random)[:, 0] == pytest.approx([-2.0, 2.0, -2.0, 2.0])
    assert not set(np.concatenate(full)[:, 1]) & set(np.concatenate(random)[:, 1])


@pytest.mark.parametrize("differences", [{}, {"full": [_estimate(1.0, None)]}])
def test_missing_comparisons_and_intervals_are_left_out(differences: Any) -> None:
    (axes,) = class_difference_figure(["cat"], differences).axes
    assert (axes.get_legend() is None) == (not differences)
    assert not [segment for bars in _bars(axes) for segment in bars if len(segment)]


def test_each_class_has_a_panel_with_its_own_images_noise_above() -> None:
    rng = np.random.default_rng(0)
    xy, labels = rng.normal(size=(60, 2)), np.repeat([0, 2], 30)
    noise = np.arange(60) % 10 == 0
    figure = class_panels(xy, labels, ["$a_", "empty", "<c>"], noise)
    panels = [axes for axes in figure.axes if axes.collections]
    assert [axes.get_title() for axes in panels] == ["$a_, 10.0 % noise", "<c>, 10.0 % noise"]
    for axes, label in zip(panels, (0, 2), strict=True):
        kept, dropped = (drawn for drawn in axes.collections if isinstance(drawn, PathCollection))
        np.testing.assert_array_equal(kept.get_offsets(), xy[(labels == label) & ~noise])
        np.testing.assert_array_equal(dropped.get_offsets(), xy[(labels == label) & noise])
    assert png(figure)


def test_of_many_classes_the_noisiest_are_shown() -> None:
    labels = np.repeat(np.arange(20), 10)
    noise = (np.arange(200) % 10) < labels // 4  # no noise in the first four classes, most in the last
    assert noisiest_classes(labels, noise) == list(range(20 - MAX_PANELS, 20))
    assert len(class_panels(np.zeros((200, 2)), labels, list(map(str, range(20))), noise).axes) == MAX_PANELS


def test_no_images_make_an_empty_figure() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert png(class_panels(np.zeros((0, 2)), nothing, ["a"], nothing.astype(bool)))


def test_class_bars_keep_the_order_and_escape_the_names() -> None:
    chart = class_share_chart(["<b>cat</b>", "dog", "dog"], {"resnet18": [0.05, 0.1, 0.0], "resnet50": [0, 0, 0]})
    assert list(chart.data[0].x) == [5.0, 10.0, 0.0]
    assert list(chart.layout.yaxis.ticktext) == ["&lt;b&gt;cat&lt;/b&gt;", "dog", "dog"]
    # Two classes of one name stay two bars.
    assert list(chart.data[0].y) == [0, 1, 2]
    assert [trace.name for trace in chart.data] == ["resnet18", "resnet50"]


def test_a_long_class_name_is_whole_under_the_pointer_alone() -> None:
    names = ["20 characters & more", "<i>21 characters</i>."]
    chart = class_share_chart(names, {"resnet18": [0.05, 0.1]})
    assert list(chart.layout.yaxis.ticktext) == ["20 characters &amp; more", "&lt;i&gt;21 characters&lt;/i…"]
    assert list(chart.data[0].text) == ["20 characters &amp; more", "&lt;i&gt;21 characters&lt;/i&gt;."]


def test_the_eps_in_use_is_marked_on_its_curve() -> None:
    curves = {"resnet18": ([0.5, 1.0, 2.0], [0.5, 0.2, 0.0]), "resnet34": ([1.0], [0.5])}
    chart = eps_chart(curves, {"resnet18": (1.0, 0.2)}, unit="eps (units of the embedding)")
    curve, mark, unmarked = chart.data
    assert unmarked.name == "resnet34"
    assert list(curve.y) == [50.0, 20.0, 0.0]
    assert (list(mark.x), list(mark.y), mark.mode) == ([1.0], [20.0], "markers")


def test_an_empty_curve_can_be_drawn() -> None:
    assert len(eps_chart({"resnet18": ([], [])}, {"resnet18": (1.0, 0.0)}, unit="eps").data) == 2


def test_the_files_draw_what_the_page_does() -> None:
    names, shares = ["$\\frac{", "_dog", "dog"], {"resnet18": [0.05, 0.1, 0.0], "resnet50": [0.0, 0.0, 1.0]}
    bars = class_share_figure(names, shares)
    assert svg(bars)
    (axes,) = bars.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == names
    widths = [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]
    assert widths == [x for of_one in class_share_chart(names, shares).data for x in of_one.x]
    curves = {"resnet18": ([0.5, 1.0, 2.0], [0.5, 0.2, 0.0]), "resnet34": ([1.0], [0.5])}
    drawn = eps_figure(curves, {"resnet18": (1.0, 0.2)}, unit="eps (units of the embedding)")
    assert svg(drawn)
    for line, trace in zip(drawn.axes[0].lines, eps_chart(curves, {"resnet18": (1.0, 0.2)}, unit="").data, strict=True):
        assert (line.get_label(), np.asarray(line.get_ydata()).tolist()) == (trace.name, list(trace.y))


def test_a_file_of_an_empty_curve_can_be_drawn() -> None:
    assert svg(eps_figure({"resnet18": ([], [])}, {"resnet18": (1.0, 0.0)}, unit="eps"))
