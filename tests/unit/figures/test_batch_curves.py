"""Charts against the batch size, and of speed against the number of GPUs."""

from typing import Any

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from pipeline.figures.batch_curves import (
    BatchCurve,
    PublishedValue,
    ScalingCurve,
    batch_chart,
    batch_figure,
    scaling_figure,
)
from pipeline.figures.rendering import plotly_html, svg
from pipeline.figures.style import LineKey, line_styles

STYLES = line_styles([LineKey(arm) for arm in ("full", "filtered", "random")])


def curve(arm: str = "filtered", sizes: tuple[int, ...] = (32, 128), **changes: Any) -> BatchCurve:
    n = len(sizes)
    given: dict[str, Any] = {
        "key": LineKey(arm),
        "style": STYLES[LineKey(arm)],
        "label": arm,
        "batch_sizes": sizes,
        "values": [90.0] * n,
        "low": [89.0] * n,
        "high": [90.5] * n,
        "n": [3] * n,
    }
    return BatchCurve(**given | changes)


def test_bars_reach_from_low_to_high() -> None:
    bars = batch_chart([curve()], y_title="top-1 (%)").data[0].error_y
    assert list(bars.arrayminus) == [1.0, 1.0]
    assert list(bars.array) == [0.5, 0.5]


def test_one_seed_has_no_bar_and_says_so() -> None:
    single = curve(sizes=(32,), low=[None], high=[None], n=[1])
    trace = batch_chart([single], y_title="top-1 (%)").data[0]
    assert np.isnan(trace.error_y.array).all()
    assert '"array":[null]' in plotly_html(batch_chart([single], y_title=""), element_id="one")
    assert list(trace.customdata[0]) == ["32", "no interval", 1]


def test_lines_keep_apart_without_leaving_their_batch_size() -> None:
    data = batch_chart([curve("full"), curve("filtered"), curve("random")], y_title="top-1 (%)").data
    drawn = [trace.x[0] for trace in data]
    assert len(set(drawn)) == 3
    assert drawn == pytest.approx([32] * 3, rel=0.03)
    assert batch_chart([curve()], y_title="").data[0].x[0] == 32


def test_a_single_batch_size_does_not_spread_over_the_axis() -> None:
    curves = [curve("full", sizes=(256,)), curve("filtered", sizes=(256,)), curve("random", sizes=(256,))]
    figure = batch_chart(curves, y_title="")
    low, high = figure.layout.xaxis.range
    drawn = np.log10([trace.x[0] for trace in figure.data])
    assert low < drawn.min()
    assert drawn.max() < high
    assert np.ptp(drawn) < 0.1 * (high - low)
    left, right = batch_figure(curves, y_title="").axes[0].get_xlim()
    assert left < 256 / 1.03 < 256 * 1.03 < right
    assert right / left == pytest.approx(2)


def test_the_axis_names_the_batch_sizes_of_all_lines() -> None:
    axis = batch_chart([curve(sizes=(32, 512)), curve("full", sizes=(32, 16384))], y_title="").layout.xaxis
    assert (axis.type, list(axis.ticktext)) == ("log", ["32", "512", "16,384"])
    axes = batch_figure([curve(sizes=(32, 512))], y_title="top-1 (%)").axes[0]
    assert (axes.get_xscale(), axes.get_ylabel()) == ("log", "top-1 (%)")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["32", "512"]


def test_both_kinds_draw_the_same_values() -> None:
    curves = [curve("full"), curve("filtered", values=[92.0, 91.0], low=[91.0, 90.0], high=[93.0, 92.0])]
    assert [list(trace.y) for trace in batch_chart(curves, y_title="").data] == [[90.0, 90.0], [92.0, 91.0]]
    containers = batch_figure(curves, y_title="").axes[0].containers
    drawn = [list(container[0].get_ydata()) for container in containers if isinstance(container, ErrorbarContainer)]
    assert drawn == [[90.0, 90.0], [92.0, 91.0]]


def test_figures_of_nothing_and_of_one_point_can_be_drawn() -> None:
    for curves in ([], [curve(sizes=(32,), low=[None], high=[None], n=[1])]):
        assert svg(batch_figure(curves, y_title="", zero_line=True)).startswith(b"<?xml")
        batch_chart(curves, y_title="", zero_line=True)


def test_published_values_are_hollow_markers_of_their_line() -> None:
    curves = [curve("full", sizes=(256,)), curve("filtered", sizes=(256,))]
    values = [
        PublishedValue(
            style=STYLES[LineKey("filtered")],
            label="published: filtered",
            batch_size=size,
            value=83.0 + size / 1000,
        )
        for size in (64, 256)
    ]
    chart = batch_chart(curves, y_title="", published=values)
    line, markers = chart.data[1], chart.data[2]
    assert (list(markers.x), list(markers.y), markers.mode) == ([64, 256], [83.064, 83.256], "markers")
    assert (markers.marker.symbol, markers.marker.color) == (f"{line.marker.symbol}-open", line.line.color)
    assert list(chart.layout.xaxis.tickvals) == [64, 256]
    drawn = batch_figure(curves, y_title="", published=values).axes[0].lines[-1]
    assert np.asarray(drawn.get_xdata()).tolist() == [64, 256]
    assert (drawn.get_markerfacecolor(), drawn.get_label()) == ("none", "published: filtered")
    assert drawn.get_markeredgecolor() == line.line.color


_CURVE = ScalingCurve(gpus=[1, 8], images_per_second=[100.0, 700.0], efficiency=[1.0, 0.875], hours=[8.0, 1.14])


def test_four_panels_show_their_values_under_the_title_simulated() -> None:
    figure = scaling_figure({"ring": _CURVE}, {"batch 64": _CURVE}, title="SIMULATED: a network on a machine")
    assert figure.get_suptitle() == "SIMULATED: a network on a machine"
    drawn = [np.asarray(panel.lines[0].get_ydata()).tolist() for panel in figure.axes]
    assert drawn == [[100.0, 700.0], [100.0, 87.5], [100.0, 87.5], [8.0, 1.14]]


def test_equal_figures_are_equal_bytes_and_empty_ones_can_be_drawn() -> None:
    first, second = (svg(scaling_figure({"ring": _CURVE}, {"batch 64": _CURVE}, title="x")) for _ in range(2))
    assert first == second
    assert svg(scaling_figure({"ring": _CURVE}, {}, title="x"))


def test_throughput_and_time_are_on_log_axes_without_formulas() -> None:
    wide = ScalingCurve(
        gpus=[1, 6, 1536, 27600],
        images_per_second=[380.0, 2e3, 5e5, 1e7],
        efficiency=[1.0] * 4,
        hours=[84, 14, 0.1, 3e-3],
    )
    figure = scaling_figure({"ring": wide}, {"batch 64": wide}, title="x")
    assert "mathdefault" not in svg(figure).decode()
    assert [panel.get_yscale() for panel in figure.axes] == ["log", "linear", "linear", "log"]
