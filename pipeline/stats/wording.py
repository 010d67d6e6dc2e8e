"""Numbers as people read them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from pipeline.stats.estimates import Estimate

T = TypeVar("T")

NOTHING = "–"
"""Stands where there is no value."""


def percent(share: float | None, digits: int = 2) -> str:
    """0.9487 -> `94.87`; the column says that it is percent."""
    return NOTHING if share is None else f"{100 * share:.{digits}f}"


def points(value: float | None) -> str:
    """Percentage points with their sign: `+0.42`."""
    # A rounded zero has no sign.
    return NOTHING if value is None else f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")


def spread(sd: float | None, scale: float = 1) -> str:
    """A standard deviation in percentage points; `scale` is 100 where it is of shares."""
    return NOTHING if sd is None else f"{scale * sd:.2f}"


def count(value: int | None) -> str:
    """`50,000`."""
    return NOTHING if value is None else f"{value:,}"


def number(value: float | None) -> str:
    """Four significant digits, the shortest way."""
    return NOTHING if value is None else f"{value:.4g}"


def span(ends: Sequence[T] | None, shown: Callable[[T], str]) -> str:
    """`9,766`, or `9,100 to 9,766` where the two ends differ; `shown` writes one."""
    if ends is None:
        return NOTHING
    low, high = map(shown, ends)
    return low if low == high else f"{low} to {high}"


def p_value(value: float | None) -> str:
    """Two significant digits: `0.042`; what is next to nothing as `< 0.0001`."""
    if value is None:
        return NOTHING
    return "< 0.0001" if value < 1e-4 else f"{value:.2g}"


def points_interval(estimate: Estimate) -> str:
    """`−0.10 to +0.94`, or why there is none."""
    if estimate.low is None:
        return _no_interval(estimate)
    return f"{points(estimate.low)} to {points(estimate.high)}"


def percent_interval(estimate: Estimate) -> str:
    """`81.20 to 83.10`, or why there is none."""
    if estimate.low is None:
        return _no_interval(estimate)
    return f"{percent(estimate.low)} to {percent(estimate.high)}"


def _no_interval(estimate: Estimate) -> str:
    """Several draws of the filter have none either against the one run of an arm that they share."""
    return "n = 1, no interval" if estimate.n == 1 else "a single seed, no interval"


def image_interval(low: float, high: float | None) -> str:
    """`850 to 1,200`, in whole images; without an upper end `more than 850`."""
    return f"more than {count(round(low))}" if high is None else f"{count(round(low))} to {count(round(high))}"


def plural(n: int, what: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"
