import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from plotly import graph_objects as go

from viz.figures.rendering import log_ticks, matplotlib_style, pdf, plotly_html, plotly_text, png, svg


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


def test_log_ticks_of_nothing_positive_do_not_fail() -> None:
    assert log_ticks([0.0, -1.0]) == [1.0]
