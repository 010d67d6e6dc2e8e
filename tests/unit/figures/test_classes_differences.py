"""Figure of class differences: positions, intervals, and an arm without intervals."""

from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from pipeline.figures.classes import class_difference_figure
from pipeline.stats.estimates import Estimate


def _estimate(mean: float, half: float | None) -> Estimate:
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Estimate(n=3, mean=mean, sd=half, low=low, high=high)


def _bars(axes: Any) -> list[Any]:
    return [one.get_segments() for one in axes.collections if isinstance(one, LineCollection)]


def test_each_control_has_a_marker_and_a_bar_on_every_row() -> None:
    differences = {"full": [_estimate(1.0, 0.5), _estimate(-2.0, 1.0)], "random": [_estimate(0.0, 2.0)] * 2}
    (axes,) = class_difference_figure(["cat", "worst class"], differences).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "worst class"]
    assert axes.yaxis_inverted()
    assert axes.get_legend_handles_labels()[1] == ["filtered − full", "filtered − random"]
    full, random = _bars(axes)
    assert np.concatenate(full)[:, 0] == pytest.approx([0.5, 1.5, -3.0, -1.0])
    assert np.concatenate(random)[:, 0] == pytest.approx([-2.0, 2.0, -2.0, 2.0])
    assert not set(np.concatenate(full)[:, 1]) & set(np.concatenate(random)[:, 1])


@pytest.mark.parametrize("differences", [{}, {"full": [_estimate(1.0, None)]}])
def test_missing_comparisons_and_intervals_are_left_out(differences: Any) -> None:
    (axes,) = class_difference_figure(["cat"], differences).axes
    assert (axes.get_legend() is None) == (not differences)
    assert not [segment for bars in _bars(axes) for segment in bars if len(segment)]
