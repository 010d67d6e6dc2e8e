from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pipeline.figures.curves import threshold_curve

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
