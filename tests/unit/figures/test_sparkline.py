import re
from xml.etree import ElementTree as ET

import pytest

from pipeline.figures.batch_curves import BatchCurve
from pipeline.figures.sparkline import sparkline
from pipeline.figures.style import LineKey, line_styles

_NS = "{http://www.w3.org/2000/svg}"


def _curve(arm: str, values: dict[int, float], label: str = "") -> BatchCurve:
    key = LineKey(arm)
    nothing = [None] * len(values)
    return BatchCurve(
        key=key, style=line_styles([key])[key], label=label or arm, batch_sizes=list(values),
        values=list(values.values()), low=nothing, high=nothing, n=[1] * len(values),
    )  # fmt: skip


def _places(svg: str) -> list[list[tuple[float, float]]]:
    lines = re.findall(r'points="([^"]+)"', svg)
    return [[tuple(map(float, place.split(","))) for place in line.split()] for line in lines]  # type: ignore[misc]


def test_higher_values_are_above_and_larger_batches_right() -> None:
    svg = sparkline([_curve("filtered", {32: 80.0, 128: 90.0}), _curve("full", {32: 70.0, 64: 75.0})], unit="%")
    (first, second), (third, fourth) = _places(svg)
    assert first[0] == third[0] < fourth[0] < second[0] <= 120
    assert 0 <= second[1] < first[1] < fourth[1] < third[1] <= 30
    assert fourth[0] == pytest.approx((first[0] + second[0]) / 2)
    colors = re.findall(r'stroke="(#[0-9a-f]{6})"', svg)
    assert len(set(colors)) == 2


def test_one_batch_size_is_a_dot_in_the_middle() -> None:
    assert _places(sparkline([_curve("filtered", {64: 80.0})], unit="%")) == [[(60.0, 15.0)]]
    assert sparkline([], unit="%") == ""


def test_its_title_has_the_values_and_names_stay_text() -> None:
    svg = sparkline([_curve("filtered", {32: 80.0, 1024: 90.5}, label="<b>filtered</b>")], unit="%")
    title = ET.fromstring(svg.replace("<svg ", f'<svg xmlns="{_NS[1:-1]}" ')).find(f"{_NS}title")
    assert title is not None
    assert title.text == "<b>filtered</b>: 80 at 32, 90.5 at 1,024 %"
