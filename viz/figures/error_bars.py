"""What charts of values with intervals along a logarithmic axis share."""

import math
from collections.abc import Sequence
from typing import Any

from viz.figures.palette import LineStyle


def bar_lengths(
    values: Sequence[float], low: Sequence[float | None], high: Sequence[float | None]
) -> tuple[list[float], list[float]]:
    """Lengths of the error bars below and above each value; NaN, which draws none, where there is no interval."""
    below = [value - end if end is not None else math.nan for value, end in zip(values, low, strict=True)]
    above = [end - value if end is not None else math.nan for value, end in zip(values, high, strict=True)]
    return below, above


def plotly_line(
    style: LineStyle, values: Sequence[float], low: Sequence[float | None], high: Sequence[float | None]
) -> dict[str, Any]:
    """What makes a `go.Scatter` of `values` a line with markers and error bars."""
    below, above = bar_lengths(values, low, high)
    return {
        "y": list(values),
        "error_y": {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "thickness": 1.5},
        "mode": "lines+markers",
        "line": {"color": style.color, "dash": style.dash[0], "width": 2},
        "marker": {"symbol": style.marker[0], "size": 8},
    }


def interval_text(low: float | None, high: float | None, format_spec: str = ".2f") -> str:
    """`89.00 to 90.50`, or that there is none."""
    return "no interval" if low is None or high is None else f"{low:{format_spec}} to {high:{format_spec}}"


def log_axis_ends(values: Sequence[float]) -> tuple[float, float]:
    """Of an axis that shows `values`, ascending and above 0.

    An octave and more is shown, lest the lines of a single value spread over all of it.
    """
    margin = 2**0.5 if len(values) < 2 else (values[-1] / values[0]) ** 0.06
    return (values[0] / margin, values[-1] * margin) if values else (1.0, 2.0)


def sideways(position: int, count: int) -> float:
    """Factor that moves a line sideways by up to 3 %, so that error bars do not hide each other."""
    middle = (count - 1) / 2
    return 2.0 ** (0.04 * (position - middle) / middle) if middle else 1.0
