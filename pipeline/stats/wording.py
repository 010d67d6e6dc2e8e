"""Numbers as people read them, and the sentences of the report's first lines."""

from pipeline.stats.comparisons import TREATED, PooledDifference
from pipeline.stats.estimates import Estimate

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


def points_interval(estimate: Estimate) -> str:
    """`−0.10 to +0.94`, or why there is none."""
    if estimate.low is None:
        return "n = 1, no interval"
    return f"{points(estimate.low)} to {points(estimate.high)}"


def percent_interval(estimate: Estimate) -> str:
    """`81.20 to 83.10`, or why there is none."""
    if estimate.low is None:
        return "n = 1, no interval"
    return f"{percent(estimate.low)} to {percent(estimate.high)}"


def image_interval(low: float, high: float | None) -> str:
    """`850 to 1,200`, in whole images; without an upper end `more than 850`."""
    return f"more than {count(round(low))}" if high is None else f"{count(round(low))} to {count(round(high))}"


def plural(n: int, what: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def pooled_sentence(pooled: PooledDifference, confidence: float) -> str:
    """What a study says of one comparison, with its certainty and what it leaves out."""
    pair = f"{TREATED} against {pooled.control.replace('_', ' ')}"
    if pooled.estimate is None:
        return f"{pair}: nothing to compare, since in no setting all seeds of both arms finished."
    estimate = pooled.estimate
    over = f"n = {plural(estimate.n, 'seed')}, each the mean over {plural(pooled.settings, 'setting')}"
    if pooled.draws > 1:
        mean_over = f"{plural(pooled.seeds, 'seed')} and {plural(pooled.settings, 'setting')}"
        over = f"n = {plural(estimate.n, 'draw')} of the filter, each the mean over {mean_over}"
    if estimate.low is None or estimate.high is None:
        found = f"{points(estimate.mean)} percentage points of top-1 ({over}): no interval, hence no conclusion"
    else:
        interval = f"{100 * confidence:g} % interval {points_interval(estimate)}; {over}"
        found = f"{_direction(estimate.low, estimate.high)}, {points(estimate.mean)} percentage points ({interval})"
    left_out = f"; {plural(pooled.left_out, 'incomplete setting')} left out" if pooled.left_out else ""
    return f"{pair}: {found}{left_out}."


def _direction(low: float, high: float) -> str:
    if low > 0:
        return "higher top-1"
    if high < 0:
        return "lower top-1"
    return "no clear difference in top-1"
