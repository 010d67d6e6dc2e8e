import numpy as np
from matplotlib.patches import Rectangle

from pipeline.figures.classes import class_share_chart, class_share_figure, eps_chart, eps_figure
from pipeline.figures.rendering import svg


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
