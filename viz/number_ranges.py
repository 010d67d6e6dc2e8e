"""Ranges of the boxes for numbers, and messages about what is outside them."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from viz.filter_settings import MAX_MIN_SAMPLES, MAX_THRESHOLD, MIN_THRESHOLD


class NumberRange(NamedTuple):
    """Numbers that a box accepts: name on the page, ends (included), whether only integers, and the range in words."""

    name: str
    low: float
    high: float
    integer: bool
    words: str


RANGES: Mapping[str, NumberRange] = {
    "threshold": NumberRange("threshold", MIN_THRESHOLD, MAX_THRESHOLD, False, "a number above 0"),
    "share": NumberRange("dropped (%)", 0, 100, False, "a number from 0 to 100"),
    "min_samples": NumberRange("min_samples", 1, MAX_MIN_SAMPLES, True, f"an integer from 1 to {MAX_MIN_SAMPLES}"),
}
"""Control -> its range."""


def number_problem(control: str, value: Any) -> str:
    """Return a message about a value outside the range of its control, else an empty text.

    Args:
        control: a key of `RANGES`.
        value: from the browser: None for text, and for numbers outside the limits of the box.
    """
    wanted = RANGES[control]
    # By type: True is an int in Python. NaN fails the comparison.
    if type(value) in (int, float) and wanted.low <= value <= wanted.high and not (wanted.integer and value % 1):
        return ""
    shown = f"{value:g} is" if type(value) in (int, float) and math.isfinite(value) else "this is"
    return f"{wanted.name}: {shown} not {wanted.words}. The last valid number stays in use."
