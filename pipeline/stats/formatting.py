"""Format numbers and verdicts as text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

from pipeline.stats.estimates import Estimate
from pipeline.stats.verdict import Verdict

T = TypeVar("T")

MISSING = "–"
"""Text of a missing value."""

Matched = Literal["steps", "epochs"]

CONDITIONAL = "conditional on this one replicate of the filter"
"""Limit of every result on the filtered arm with one replicate of the filter."""

UNIT_NAMES = {"seed": "seed", "draw": "replicate"}
"""Unit of a verdict, as stored -> its name in tables and sentences."""


def percent(share: float | None, digits: int = 2) -> str:
    """Format a share as percent without the sign: 0.9487 -> `94.87`."""
    return MISSING if share is None else f"{100 * share:.{digits}f}"


def points(value: float | None) -> str:
    """Format percentage points with their sign: `+0.42`."""
    # A rounded zero has no sign.
    return MISSING if value is None else f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")


def spread(sd: float | None, scale: float = 1) -> str:
    """Format a standard deviation in percentage points; `scale` is 100 for one of shares."""
    return MISSING if sd is None else f"{scale * sd:.2f}"


def count(value: int | None) -> str:
    """Format a count: `50,000`."""
    return MISSING if value is None else f"{value:,}"


def number(value: float | None) -> str:
    """Format a number with at most four significant digits."""
    return MISSING if value is None else f"{value:.4g}"


def plain_number(value: float | None) -> str:
    """Format a number with at most four significant digits below 1000, whole above; without a power of ten."""
    return number(value) if value is None or round(value, 1) < 1000 else count(round(value))


def span(ends: Sequence[T] | None, fmt: Callable[[T], str]) -> str:
    """Format a range: `9,766`, or `9,100 to 9,766` if the ends differ; `fmt` formats one end."""
    if ends is None:
        return MISSING
    low, high = map(fmt, ends)
    return low if low == high else f"{low} to {high}"


def p_value(value: float | None) -> str:
    """Format a p-value with two significant digits: `0.042`; the smallest as `< 0.0001`."""
    if value is None:
        return MISSING
    return "< 0.0001" if value < 1e-4 else f"{value:.2g}"


def p_equals(value: float | None) -> str:
    """Format a p-value with its sign: `p = 0.042`, `p < 0.0001`."""
    text = p_value(value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def points_interval(estimate: Estimate) -> str:
    """Format an interval in percentage points: `−0.10 to +0.94`, or why there is none."""
    if estimate.low is None:
        return _no_interval(estimate)
    return f"{points(estimate.low)} to {points(estimate.high)}"


def percent_interval(estimate: Estimate) -> str:
    """Format an interval in percent: `81.20 to 83.10`, or why there is none."""
    if estimate.low is None:
        return _no_interval(estimate)
    return f"{percent(estimate.low)} to {percent(estimate.high)}"


def _no_interval(estimate: Estimate) -> str:
    """Return why there is no interval: one value, or filter replicates of one seed or without a common one."""
    return "n = 1, no interval" if estimate.n == 1 else "no interval"


def image_interval(low: float, high: float | None) -> str:
    """Format an interval in whole images: `850 to 1,200`; without an upper end `more than 850`."""
    return f"more than {count(round(low))}" if high is None else f"{count(round(low))} to {count(round(high))}"


def margin_text(points: float) -> str:
    """Format a margin in percentage points: `0.50`; one below 0.01 with two significant digits."""
    return f"{points:.2f}" if points >= 0.01 else f"{points:.2g}"


def plural(n: int, what: str) -> str:
    """Format a count with its noun: `1 seed`, `3 seeds`."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def aligned_lines(rows: Sequence[Sequence[str]], *, left: int = 0) -> Iterator[str]:
    """Yield a line for each row of a table for a terminal, with two blanks between columns and none at the end.

    Args:
        rows: cells, as many in each row; headings are the first row.
        left: number of columns, from the first, that are aligned left; the others are aligned right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:{'<' if i < left else '>'}{widths[i]}}" for i, cell in enumerate(row)]
        yield "  ".join(cells).rstrip()


def verdict_sentence(verdict: Verdict, *, treated: str, control: str, matched: Matched, left_out: int = 0) -> str:
    """Return a verdict as a sentence, with its basis and its limits.

    Args:
        treated, control: names of the arms, e.g. `filtered` and `random`.
        matched: what is equal in both arms. Equal steps and equal epochs are separate comparisons.
        left_out: number of incomplete settings, which the verdict does not cover.
    """
    return f"{comparison_title(treated, control, matched)}: {finding(verdict, left_out=left_out)}."


def finding(
    verdict: Verdict, *, of_a_filter: bool = True, left_out: int = 0, family: str = "settings", metric: str = "top-1"
) -> str:
    """Return `helps, +0.42 percentage points of top-1 (...)`, with its basis in the brackets.

    Args:
        of_a_filter: whether a filter takes part in the comparison, so that its replicate must be named.
        left_out: number of incomplete settings, which the verdict does not cover.
        family: plural noun of what Holm's adjustment covers.
        metric: what is compared.
    """
    counted = replicates(verdict.estimate.n, verdict.unit, seeds=verdict.seeds, settings=verdict.settings)
    parts = [_estimate(verdict), counted, *_p_values(verdict, family), *_looks(verdict), *_limits(verdict)]
    if of_a_filter and verdict.draws == 1:
        parts.append(CONDITIONAL)
    if left_out:
        parts.append(f"{plural(left_out, 'incomplete setting')} left out")
    return f"{_outcome(verdict, metric)} ({'; '.join(parts)})"


def verdict_headline(verdict: Verdict, *, treated: str, control: str, matched: Matched) -> str:
    """Return the comparison and its outcome, without the basis."""
    return f"{comparison_title(treated, control, matched)}: {_outcome(verdict)}"


def comparison_title(treated: str, control: str, matched: Matched) -> str:
    """Return e.g. `filtered against random uniform at equal steps`."""
    return f"{treated} against {control.replace('_', ' ')} at equal {matched}"


def _outcome(verdict: Verdict, metric: str = "top-1") -> str:
    margin = f"±{margin_text(100 * verdict.rule.margin)} percentage points"
    if verdict.outcome == "equivalent":
        small = ", the difference being significant but small" if verdict.significant_but_small else ""
        return f"equivalent within {margin}{small}"
    if verdict.outcome == "undecided":
        return f"undecided, with a margin of {margin}"
    return f"{verdict.outcome}, {points(100 * verdict.estimate.mean)} percentage points of {metric}"


def _estimate(verdict: Verdict) -> str:
    estimate = verdict.estimate
    mean = f"mean {points(100 * estimate.mean)}"
    if estimate.low is None or estimate.high is None:
        return f"{mean}, no interval"
    ends = f"{points(100 * estimate.low)} to {points(100 * estimate.high)}"
    return f"{mean}, {100 * (1 - verdict.rule.alpha):g} % interval {ends}"


def replicates(n: int, unit: Literal["seed", "draw"], *, seeds: int, settings: int) -> str:
    """Return e.g. `n = 3 replicates of the filter, each the mean over 4 seeds and 2 settings`.

    Args:
        n: number of `unit`s compared; a `draw` is a replicate of the filter.
        seeds: seeds per replicate of the filter.
        settings: settings averaged first.
    """
    counted = plural(n, UNIT_NAMES[unit])
    over = [plural(settings, "setting")] if settings > 1 else []
    if unit == "draw":
        counted, over = f"{counted} of the filter", [plural(seeds, "seed"), *over]
    return f"n = {counted}{', each the mean over ' if over else ''}{' and '.join(over)}"


def _p_values(verdict: Verdict, family: str) -> list[str]:
    tests = verdict.tests
    if tests is None:
        return []
    others = f"{p_value(tests.sign_flip)} (sign flips), {p_value(tests.equivalence)} (equivalence)"
    parts = [f"{p_equals(tests.t)} (t), {others}"]
    if verdict.comparisons > 1:
        parts.append(
            f"after Holm for {verdict.comparisons} {family} {p_value(tests.adjusted_difference)} (difference), "
            f"{p_value(tests.adjusted_equivalence)} (equivalence)"
        )
    return parts


def _looks(verdict: Verdict) -> list[str]:
    """Return the look at which the study stopped, its levels, and which test decides."""
    planned = verdict.rule.looks
    if not planned:
        return []
    of_all = f"of looks stated at {', '.join(map(str, planned[:-1]))} and {planned[-1]} seeds"
    if len(planned) == 1:
        of_all = f"of one look stated at {planned[0]} seeds"
    if verdict.seeds < planned[0]:
        return [f"no look taken yet, {of_all}"]
    levels = verdict.levels
    each = f"{number(levels.difference)} (difference) and {number(levels.equivalence)} (each side of equivalence)"
    parts = [
        f"look at {plural(verdict.seeds, 'seed')}, {of_all}",
        f"the t test decides, at levels {each} a look; the interval holds at all looks together",
    ]
    if verdict.unused:
        parts.append(f"{plural(verdict.unused, 'later seed')} not used")
    return parts


def _limits(verdict: Verdict) -> list[str]:
    limits = []
    if verdict.tests is None:
        limits.append("a single seed, hence no test")
    elif verdict.too_few_pairs:
        pairs, least = verdict.tests.pairs, verdict.tests.smallest_difference
        counted = plural(pairs, UNIT_NAMES[verdict.limiting_unit])
        limits.append(
            f"too few to claim a difference: with {counted} the sign-flip test gives {p_value(least)} at best, and "
            f"reaches {number(verdict.levels.difference)} from {verdict.pairs_needed} on"
        )
    return limits
