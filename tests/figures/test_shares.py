from viz.figures.shares import class_share_chart, eps_chart


def test_class_bars_keep_the_order_and_escape_the_names() -> None:
    chart = class_share_chart(["<b>cat</b>", "dog", "dog"], {"resnet18": [0.05, 0.1, 0.0], "resnet50": [0, 0, 0]})
    assert list(chart.data[0].x) == [5.0, 10.0, 0.0]
    assert list(chart.layout.yaxis.ticktext) == ["&lt;b&gt;cat&lt;/b&gt;", "dog", "dog"]
    # Two classes of one name stay two bars.
    assert list(chart.data[0].y) == [0, 1, 2]
    assert [trace.name for trace in chart.data] == ["resnet18", "resnet50"]


def test_the_eps_in_use_is_marked_on_its_curve() -> None:
    curves = {"resnet18": ([0.5, 1.0, 2.0], [0.5, 0.2, 0.0]), "resnet34": ([1.0], [0.5])}
    chart = eps_chart(curves, {"resnet18": (1.0, 0.2)}, unit="eps (map units)")
    curve, mark, unmarked = chart.data
    assert unmarked.name == "resnet34"
    assert list(curve.y) == [50.0, 20.0, 0.0]
    assert (list(mark.x), list(mark.y), mark.mode) == ([1.0], [20.0], "markers")


def test_an_empty_curve_can_be_drawn() -> None:
    assert len(eps_chart({"resnet18": ([], [])}, {"resnet18": (1.0, 0.0)}, unit="eps").data) == 2
