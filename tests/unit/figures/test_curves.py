"""Curves of training, of sorted values and of runs."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pipeline.figures.curves import (
    LOSS,
    TOP1,
    LearningCurve,
    RunCurve,
    RunCurves,
    learning_chart,
    learning_figure,
    run_chart,
    threshold_curve,
)
from pipeline.figures.rendering import plotly_html, svg
from pipeline.figures.style import LineKey, line_styles

_ASCENDING = arrays.arrays(np.float64, st.integers(0, 3000), elements=st.floats(0, 1e6) | st.just(np.inf)).map(np.sort)


@given(ordered=_ASCENDING, threshold=st.floats(1e-6, 1e6))
def test_the_curve_says_what_share_is_at_most_each_value(ordered: Any, threshold: float) -> None:
    figure = threshold_curve(ordered, threshold, title="value")
    ranks, values = figure.data[0].x, figure.data[0].y
    finite = ordered[np.isfinite(ordered)]
    assert len(values) <= 400
    assert np.isfinite(np.asarray(values, dtype=float)).all()
    for rank, value in zip(ranks, values, strict=True):
        assert ordered[round(rank * len(ordered) / 100) - 1] == value
    if len(finite):
        # Both ends are on it.
        assert (values[0], values[-1]) == (finite[0], finite[-1])
        assert ranks[-1] == 100 * len(finite) / len(ordered)
    line = figure.layout.shapes[0]
    assert (line.y0, line.y1) == (threshold, threshold)


def test_a_long_axis_name_lies_above_the_chart_where_it_has_room() -> None:
    title = "distance to neighbor 99 (units of the components)"
    figure = threshold_curve(np.arange(5.0), 2.0, title=title)
    (annotation,) = [part for part in figure.layout.annotations if part.text == title]
    assert annotation.textangle in (None, 0)
    assert not figure.layout.yaxis.title.text


STYLES = line_styles([LineKey("filtered"), LineKey("full")])
CURVES = [
    LearningCurve(key=LineKey("filtered"), style=STYLES[LineKey("filtered")], x=[32, 64], values=[2.0, 1.0]),
    LearningCurve(key=LineKey("full"), style=STYLES[LineKey("full")], x=[32, 64], values=[2.2, 0.9]),
]


def test_one_panel_for_each_title_and_one_entry_for_each_line() -> None:
    panels = {f"batch size {size}": CURVES for size in (16, 32, 64, 128)}
    chart = learning_chart(panels, LOSS)
    # The horizontal axis is named once.
    assert [note.text for note in chart.layout.annotations] == [*panels, "training images processed"]
    assert len(chart.data) == 8
    assert [trace.name for trace in chart.data if trace.showlegend] == ["filtered", "full"]
    figure = learning_figure(panels, LOSS)
    assert [axes.get_title() for axes in figure.axes if axes.axison] == list(panels)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["filtered", "full"]


def test_loss_ticks_are_plain_numbers() -> None:
    figure = learning_figure({"batch size 16": CURVES}, LOSS)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["0.5", "1", "2"]


def test_the_axis_has_its_title_and_scale_in_both() -> None:
    for axis, scale in ((LOSS, "log"), (TOP1, "linear")):
        chart, figure = (
            learning_chart({"batch size 16": CURVES}, axis),
            learning_figure({"batch size 16": CURVES}, axis),
        )
        assert (chart.layout.yaxis.title.text, figure.get_supylabel()) == (axis.title, axis.title)
        assert ((chart.layout.yaxis.type or "linear"), figure.axes[0].get_yscale()) == (scale, scale)


def test_a_curve_of_one_record_is_seen_and_nothing_is_no_error() -> None:
    single = LearningCurve(key=LineKey("full"), style=STYLES[LineKey("full")], x=[32], values=[2.0])
    assert learning_chart({"batch size 32": [single]}, LOSS).data[0].mode == "lines+markers"
    figure = learning_figure({"batch size 32": [single]}, LOSS)
    assert figure.axes[0].lines[0].get_marker() == "."
    assert svg(figure)
    assert svg(learning_figure({}, LOSS))


def test_the_axis_is_named_after_what_it_counts() -> None:
    for x_axis, title in (
        ("examples", "training images processed"),
        ("steps", "optimizer steps"),
        ("epochs", "epochs"),
    ):
        chart = learning_chart({"batch size 16": CURVES}, LOSS, x_axis=x_axis)
        assert chart.layout.annotations[-1].text == title
        assert learning_figure({"batch size 16": CURVES}, LOSS, x_axis=x_axis).get_supxlabel() == title


SOUND = RunCurve(name="seed 0", points=[(1, 2.0), (5, 1.0)], diverged=False)
BROKEN = RunCurve(name="seed 1, diverged", points=[(1, 2.0), (3, 4.0)], diverged=True)


def _line(mean: list[tuple[int, float]], runs: list[RunCurve]) -> RunCurves:
    key = LineKey("full")
    return RunCurves(key=key, style=line_styles([key])[key], mean=mean, runs=runs)


def test_thin_lines_are_runs_and_the_thick_one_their_mean() -> None:
    chart = run_chart([_line([(1, 2.0), (5, 1.0)], [SOUND, BROKEN])])
    first, second, mean = chart.data
    assert [trace.showlegend for trace in (first, second, mean)] == [False, False, None]
    assert first.line.width < mean.line.width
    assert {trace.line.color for trace in (first, second, mean)} == {first.line.color}
    assert (list(mean.x), list(mean.y)) == ([1, 5], [2.0, 1.0])


def test_a_cross_ends_a_run_that_diverged() -> None:
    sound, broken, _ = run_chart([_line([], [SOUND, BROKEN])]).data
    assert sound.mode == "lines"
    assert (broken.mode, broken.marker.symbol, list(broken.marker.size)) == ("lines+markers", "x", [0, 9])


def test_a_run_of_one_record_is_seen_and_one_of_none_is_no_error() -> None:
    single = RunCurve(name="seed 0", points=[(1, 2.0)], diverged=False)
    nothing = RunCurve(name="seed 1, diverged", points=[], diverged=True)
    chart = run_chart([_line([(1, 2.0)], [single, nothing])])
    assert [trace.mode for trace in chart.data] == ["lines+markers"] * 3
    assert plotly_html(chart, element_id="one")
    assert plotly_html(run_chart([]), element_id="none")
