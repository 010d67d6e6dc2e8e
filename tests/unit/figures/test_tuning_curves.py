"""The figures of a search, as files for papers."""

import numpy as np
from matplotlib.figure import Figure

from pipeline.figures.rendering import svg
from pipeline.figures.tuning_curves import (
    KeyAxis,
    TrialCurve,
    importance_chart,
    importance_figure,
    parallel_figure,
    tuning_figure,
)


def _curve(accuracies: list[float], *, searched: int, winner: bool = False, out: int | None = None) -> TrialCurve:
    return TrialCurve(name="trial", accuracies=accuracies, searched=searched, winner=winner, eliminated_after=out)


CURVES = [
    _curve([0.1, 0.2], searched=1, out=1),
    _curve([0.3, 0.4, 0.6], searched=3, winner=True),
    _curve([0.3, 0.35], searched=2, out=2),
]


def _legend(figure: Figure) -> set[str]:
    return {text.get_text() for text in figure.legends[0].get_texts()}


def test_trials_are_curves_with_crosses_and_dotted_after_pruning() -> None:
    (axes,) = tuning_figure(CURVES).axes
    lines = [(line.get_marker(), line.get_linestyle(), np.array(line.get_data()).T.tolist()) for line in axes.lines]
    searched = [points for marker, _, points in lines if marker == "o"]
    crosses = [points for marker, _, points in lines if marker == "x"]
    dotted = [points for _, style, points in lines if style == ":"]
    assert searched == [[[1, 10]], [[1, 30], [2, 35]], [[1, 30], [2, 40], [3, 60]]]  # the winner above the others
    assert crosses == [[[1, 10]], [[2, 35]]]
    assert dotted == [[[1, 10], [2, 20]]]


def test_the_legend_names_what_is_there() -> None:
    assert _legend(tuning_figure(CURVES)) == {"winner", "other trials", "pruned", "trained afterwards"}
    assert _legend(tuning_figure(CURVES[1:2])) == {"winner"}
    assert svg(tuning_figure([]))


def test_bars_of_importance_are_the_shares_with_the_longest_on_top() -> None:
    shares = {"learning_rates": 0.7, "recipe.label_smoothing": 0.1, "weight_decays": 0.2}
    (axes,) = importance_figure(shares).axes
    widths = [bar.get_width() for bar in axes.patches]  # type: ignore[attr-defined]
    assert widths == [0.1, 0.2, 0.7] == list(importance_chart(shares).data[0].x)
    assert [label.get_text() for label in axes.get_yticklabels()][-1] == "learning_rates"


def test_each_trial_is_a_line_through_its_values_to_its_accuracy() -> None:
    keys = [
        KeyAxis(name="learning_rates", positions=[0.0, 0.25, 1.0], ticks={0.0: "0.001", 1.0: "1"}),
        KeyAxis(name="recipe.optimizer", positions=[0.5, 0.5, 0.5], ticks={0.5: '{"name": "lamb"}'}),
    ]
    figure = parallel_figure(keys, [0.2, 0.6, 0.4], winner=1)
    axes = figure.axes[0]
    lines = [line for line in axes.lines if len(np.atleast_1d(line.get_ydata())) == 3]
    assert [np.asarray(line.get_ydata()).tolist() for line in lines] == [[0, 0.5, 0], [1, 0.5, 0.5], [0.25, 0.5, 1]]
    assert [line.get_linewidth() for line in lines] == [1.0, 1.0, 2.5]
    assert [text.get_text() for text in axes.texts] == ["0.001", "1", '{"name": "lamb"}']
    assert [label.get_text() for label in axes.get_xticklabels()] == ["learning_rates", "recipe. optimizer"]
    assert svg(figure) == svg(parallel_figure(keys, [0.2, 0.6, 0.4], winner=1))
