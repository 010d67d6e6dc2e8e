"""Figures as bytes and markup, and grids of images."""

import io
import json
import math
import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image
from plotly import graph_objects as go

from pipeline.figures.rendering import (
    image_grid,
    log_ticks,
    matplotlib_log_axis,
    matplotlib_style,
    pdf,
    plotly_html,
    plotly_text,
    png,
    svg,
    thumbnail,
)


def drawing(text: str = "a name") -> Figure:
    with matplotlib_style():
        figure = Figure(figsize=(2, 2))
        figure.add_subplot().plot([1, 2], [3, 4], label=text)
        figure.legend()
        figure.text(0, 0, text)
        return figure


def arguments(markup: str) -> list[Any]:
    """What a page hands to plotly.js: element, traces, layout, configuration."""
    call = re.search(r"Plotly\.newPlot\((.*)\)</script>$", markup)
    assert call is not None
    found: list[Any] = json.loads(f"[{call[1]}]")
    return found


def test_equal_figures_are_equal_bytes_without_dates() -> None:
    assert svg(drawing()) == svg(drawing())
    assert png(drawing()) == png(drawing())
    assert pdf(drawing()) == pdf(drawing())
    assert b"date" not in svg(drawing()).lower()
    assert b"date" not in pdf(drawing()).lower()


@pytest.mark.parametrize("name", ["$x$", "$\\frac{&$", "<b>&", "鸟", "a\nb"])
def test_a_name_is_drawn_as_it_is_written(name: str) -> None:
    assert png(drawing(name)).startswith(b"\x89PNG")
    ET.fromstring(svg(drawing(name)))


def test_plotly_markup_offers_no_upload_and_names_no_address() -> None:
    markup = plotly_html(go.Figure(go.Scatter(y=[1, 2])), element_id="one")
    config = arguments(markup)[3]
    assert (config["showSendToCloud"], config["plotlyServerURL"], config["displaylogo"]) == (False, "", False)
    assert "http" not in markup
    assert markup == plotly_html(go.Figure(go.Scatter(y=[1, 2])), element_id="one")


def test_a_name_cannot_leave_the_script_of_its_chart() -> None:
    name = '</script><img src="x">'
    markup = plotly_html(go.Figure(go.Scatter(y=[1], name=plotly_text(name))), element_id="one")
    assert "<img" not in markup
    assert arguments(markup)[1][0]["name"] == '&lt;/script&gt;&lt;img src="x"&gt;'


@given(st.lists(st.floats(1e-6, 1e6), min_size=1))
def test_log_ticks_are_few_round_and_about_the_values(values: list[float]) -> None:
    ticks = log_ticks(values)
    assert ticks == sorted(ticks)
    assert any(min(values) / 2 < tick < 2 * max(values) for tick in ticks)
    assert len({f"{tick:g}" for tick in ticks}) == len(ticks)
    within = sum(min(values) <= tick <= max(values) for tick in ticks)
    assert within >= 2 or all(f"{tick:.0e}"[0] in "125" for tick in ticks)


@pytest.mark.parametrize("values", [[], [0.0, -1.0], [math.inf, math.nan]])
def test_log_ticks_of_nothing_positive_do_not_fail(values: list[float]) -> None:
    assert log_ticks(values) == [1.0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([380.0, 1200.0], ["200", "500", "1,000", "2,000"]),
        ([0.003, 84.0], ["0.01", "0.1", "1", "10", "100"]),
        ([380.0, 1e7], ["1,000", "10,000", "100,000", "1,000,000", "10,000,000"]),
        ([1e-12, 1.0], ["1e-12", "1e-10", "1e-08", "1e-06", "0.0001", "0.01", "1"]),
        ([2.303, 2.3028], ["2"]),
        ([2.25, 3.75], ["2.1", "2.4", "2.7", "3", "3.3", "3.6", "3.9"]),
        ([3.0], ["2", "5"]),
    ],
)
def test_a_log_axis_has_a_few_numbers_as_people_write_them(values: list[float], expected: list[str]) -> None:
    """Not as formulas, which are off in all figures for names with a dollar sign."""
    for which in ("x", "y"):
        with matplotlib_style():
            figure = Figure()
            axes = figure.add_subplot()
            axes.plot(*((values, values[::-1]) if which == "x" else (values[::-1], values)))
            matplotlib_log_axis(axes, which, values)
            figure.draw_without_rendering()
        axis = getattr(axes, f"{which}axis")
        assert [label.get_text() for label in axis.get_ticklabels(which="both")] == expected
        low, high = axis.get_view_interval()
        assert low <= min(axis.get_ticklocs())
        assert max(axis.get_ticklocs()) <= high


@pytest.mark.parametrize("values", [[], [0.0], [math.nan]])
def test_an_axis_of_nothing_positive_stays_linear(values: list[float]) -> None:
    with matplotlib_style():
        figure = Figure()
        axes = figure.add_subplot()
        axes.plot(values, values)
        matplotlib_log_axis(axes, "y", values)
        figure.draw_without_rendering()
    assert axes.get_yscale() == "linear"


def test_small_images_keep_every_pixel() -> None:
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    media_type, file = thumbnail(image)
    assert media_type == "image/png"
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(file))), image)


def test_large_images_are_reduced() -> None:
    image = np.full((512, 512, 3), (200, 30, 90), dtype=np.uint8)
    media_type, file = thumbnail(image)
    small = np.asarray(Image.open(io.BytesIO(file)))
    assert media_type == "image/jpeg"
    assert small.shape == (96, 96, 3)
    assert abs(small.astype(int) - (200, 30, 90)).max() < 6
    assert len(file) < 3000


def test_the_grid_shows_each_image_under_its_own_caption() -> None:
    images = [np.full((8, 8, 3), index * 20, dtype=np.uint8) for index in range(12)]
    figure = image_grid(images, [f"$class {index}$" for index in range(12)])
    shown = [(axes.get_title(), np.max(axes.images[0].get_array())) for axes in figure.axes if axes.images]  # type: ignore[arg-type]
    assert shown == [(f"$class {index}$", index * 20) for index in range(12)]
    assert png(figure)


def test_long_captions_are_cut_line_by_line() -> None:
    figure = image_grid([np.zeros((8, 8, 3), dtype=np.uint8)], ["a" * 50 + "\nshort"])
    first, second = figure.axes[0].get_title().splitlines()
    assert first.endswith("…")
    assert len(first) <= 16
    assert second == "short"


def test_an_empty_grid_can_be_drawn() -> None:
    assert png(image_grid([], []))
