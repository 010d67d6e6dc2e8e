"""Numbers and verdicts as text."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from pipeline.stats.estimates import Estimate
from pipeline.stats.verdict import Verdict

# Numbers as people read them.


T = TypeVar("T")

MISSING = "–"
"""Stands where there is no value."""


def percent(share: float | None, digits: int = 2) -> str:
    """0.9487 -> `94.87`; the column says that it is percent."""
    return MISSING if share is None else f"{100 * share:.{digits}f}"


def points(value: float | None) -> str:
    """Percentage points with their sign: `+0.42`."""
    # A rounded zero has no sign.
    return MISSING if value is None else f"{round(value, 2) + 0.0:+.2f}".replace("-", "−")


def spread(sd: float | None, scale: float = 1) -> str:
    """A standard deviation in percentage points; `scale` is 100 where it is of shares."""
    return MISSING if sd is None else f"{scale * sd:.2f}"


def count(value: int | None) -> str:
    """`50,000`."""
    return MISSING if value is None else f"{value:,}"


def number(value: float | None) -> str:
    """Four significant digits, the shortest way."""
    return MISSING if value is None else f"{value:.4g}"


def span(ends: Sequence[T] | None, shown: Callable[[T], str]) -> str:
    """`9,766`, or `9,100 to 9,766` where the two ends differ; `shown` writes one."""
    if ends is None:
        return MISSING
    low, high = map(shown, ends)
    return low if low == high else f"{low} to {high}"


def p_value(value: float | None) -> str:
    """Two significant digits: `0.042`; what is next to nothing as `< 0.0001`."""
    if value is None:
        return MISSING
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


# A verdict as a sentence, differences of accuracy as percentage points.


Matched = Literal["steps", "epochs"]

CONDITIONAL = "conditional on this one draw of the filter"
"""Of whatever is found of the filtered arm with one draw of the filter."""


def verdict_sentence(verdict: Verdict, *, treated: str, control: str, matched: Matched, left_out: int = 0) -> str:
    """What was found, what it rests on, and what it cannot say.

    Args:
        treated, control: names of the arms, e.g. `filtered` and `random`.
        matched: what both arms had the same number of. Equal steps and equal epochs are separate comparisons.
        left_out: incomplete settings that the verdict is not over.
    """
    return f"{comparison_title(treated, control, matched)}: {finding(verdict, left_out=left_out)}."


def finding(verdict: Verdict, *, of_a_filter: bool = True, left_out: int = 0, family: str = "settings") -> str:
    """`helps, +0.42 percentage points of top-1 (...)`, with what it rests on in the brackets.

    Args:
        of_a_filter: whether a filter has any part in what is compared, so that its draw must be named.
        left_out: incomplete settings that the verdict is not over.
        family: of what Holm's adjustment covers several, where it does.
    """
    counted = replicates(verdict.estimate.n, verdict.unit, seeds=verdict.seeds, settings=verdict.settings)
    parts = [_estimate(verdict), counted, *_p_values(verdict, family), *_looks(verdict), *_limits(verdict)]
    if of_a_filter and verdict.draws == 1:
        parts.append(CONDITIONAL)
    if left_out:
        parts.append(f"{plural(left_out, 'incomplete setting')} left out")
    return f"{_outcome(verdict)} ({'; '.join(parts)})"


def verdict_headline(verdict: Verdict, *, treated: str, control: str, matched: Matched) -> str:
    """What was compared and found, without what it rests on."""
    return f"{comparison_title(treated, control, matched)}: {_outcome(verdict)}"


def comparison_title(treated: str, control: str, matched: Matched) -> str:
    """`filtered against random uniform at equal steps`."""
    return f"{treated} against {control.replace('_', ' ')} at equal {matched}"


def _outcome(verdict: Verdict) -> str:
    margin = f"±{100 * verdict.rule.margin:.2f} percentage points"
    if verdict.outcome == "equivalent":
        small = ", the difference being certain but small" if verdict.certain_but_small else ""
        return f"equivalent within {margin}{small}"
    if verdict.outcome == "undecided":
        return f"undecided, with a margin of {margin}"
    return f"{verdict.outcome}, {points(100 * verdict.estimate.mean)} percentage points of top-1"


def _estimate(verdict: Verdict) -> str:
    estimate = verdict.estimate
    mean = f"mean {points(100 * estimate.mean)}"
    if estimate.low is None or estimate.high is None:
        return f"{mean}, no interval"
    ends = f"{points(100 * estimate.low)} to {points(100 * estimate.high)}"
    return f"{mean}, {100 * (1 - verdict.rule.alpha):g} % interval {ends}"


def replicates(n: int, unit: Literal["seed", "draw"], *, seeds: int, settings: int) -> str:
    """`n = 3 draws of the filter, each the mean over 4 seeds and 2 settings`.

    Args:
        n: how many of `unit` were compared.
        seeds: of each draw.
        settings: that were averaged before.
    """
    counted = plural(n, unit)
    over = [plural(settings, "setting")] if settings > 1 else []
    if unit == "draw":
        counted, over = f"{counted} of the filter", [plural(seeds, "seed"), *over]
    return f"n = {counted}{', each the mean over ' if over else ''}{' and '.join(over)}"


def _p_values(verdict: Verdict, family: str) -> list[str]:
    tests = verdict.tests
    if tests is None:
        return []
    differ = f"{number(tests.t)} (t), {number(tests.sign_flip)} (sign flips)"
    found = [f"p = {differ}, {number(tests.equivalence)} (equivalence)"]
    if verdict.comparisons > 1:
        found.append(
            f"after Holm for {verdict.comparisons} {family} {number(tests.adjusted_difference)} (difference), "
            f"{number(tests.adjusted_equivalence)} (equivalence)"
        )
    return found


def _looks(verdict: Verdict) -> list[str]:
    """At which look the study stopped, at which levels, and what the interval and the sign flips are then."""
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
    said = [
        f"look at {plural(verdict.seeds, 'seed')}, {of_all}",
        f"the t test decides, at levels {each} a look; the interval holds at all looks together",
    ]
    if verdict.unused:
        said.append(f"{plural(verdict.unused, 'later seed')} not used")
    return said


def _limits(verdict: Verdict) -> list[str]:
    limits = []
    if verdict.tests is None:
        limits.append("a single seed, hence no test")
    elif verdict.too_few_pairs:
        pairs, least = verdict.tests.pairs, verdict.tests.smallest_difference
        what = verdict.unit if pairs == verdict.estimate.n else "seed"
        limits.append(
            f"too few to claim a difference: with {plural(pairs, what)} the sign-flip test gives {number(least)} "
            f"at best, and reaches {number(verdict.levels.difference)} from {verdict.pairs_needed} on"
        )
    return limits
