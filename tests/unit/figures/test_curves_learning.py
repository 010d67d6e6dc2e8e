from pipeline.figures.curves import LOSS, TOP1, LearningCurve, learning_chart, learning_figure
from pipeline.figures.rendering import svg
from pipeline.figures.style import LineKey, line_styles

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
    assert svg(learning_figure({"batch size 32": [single]}, LOSS))
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
