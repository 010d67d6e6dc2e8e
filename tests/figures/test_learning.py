from viz.figures.learning import LearningCurve, learning_chart, learning_figure
from viz.figures.palette import LineKey
from viz.figures.rendering import svg

CURVES = [
    LearningCurve(key=LineKey("filtered"), examples=[32, 64], loss=[2.0, 1.0]),
    LearningCurve(key=LineKey("full"), examples=[32, 64], loss=[2.2, 0.9]),
]


def test_one_panel_for_each_title_and_one_entry_for_each_line() -> None:
    panels = {f"batch size {size}": CURVES for size in (16, 32, 64, 128)}
    chart = learning_chart(panels)
    assert [note.text for note in chart.layout.annotations] == list(panels)
    assert len(chart.data) == 8
    assert [trace.name for trace in chart.data if trace.showlegend] == ["filtered", "full"]
    figure = learning_figure(panels)
    assert [axes.get_title() for axes in figure.axes if axes.axison] == list(panels)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["filtered", "full"]


def test_loss_ticks_are_plain_numbers() -> None:
    figure = learning_figure({"batch size 16": CURVES})
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["0.5", "1", "2"]


def test_a_curve_of_one_record_is_seen_and_nothing_is_no_error() -> None:
    single = LearningCurve(key=LineKey("full"), examples=[32], loss=[2.0])
    assert learning_chart({"batch size 32": [single]}).data[0].mode == "lines+markers"
    assert svg(learning_figure({"batch size 32": [single]}))
    assert svg(learning_figure({}))
