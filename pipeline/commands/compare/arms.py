"""Compare two arms of a table of runs: verdicts over all settings and at each, power, and their text."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.commands.compare.report import paragraph
from pipeline.commands.compare.run_table import RunTable, Setting, Value, value_text
from pipeline.stats.comparisons import (
    POWER,
    in_points,
    needed_sentence,
    power_at_margin,
    replicates_needed,
    verdict_values,
)
from pipeline.stats.estimates import Estimate
from pipeline.stats.formatting import MISSING, aligned_lines, finding, number, p_value, plural, points, points_interval
from pipeline.stats.verdict import DecisionRule, Verdict, pooled_verdict, verdicts_by_setting


@dataclass(frozen=True, kw_only=True)
class TableComparison:
    """Verdicts on arm B against arm A.

    Attributes:
        step: the metric is a multiple of it, 0 to 1; the tests count its rounding.
        pooled: over the settings that have every seed; None if none has.
        left_out: number of other settings.
        settings: one verdict per setting, Holm-adjusted.
    """

    runs: RunTable
    rule: DecisionRule
    step: float
    pooled: Verdict | None
    left_out: int
    settings: Mapping[Setting, Verdict]


def compare_arms(runs: RunTable, rule: DecisionRule, *, step: float) -> TableComparison:
    """Test B against A over all settings that have every seed, and at each setting.

    Args:
        step: resolution of the metric: of its decimals, or 1 / test images if that is more.
    """
    seeds = list(dict.fromkeys(seed for of_setting in runs.differences.values() for seed in of_setting))
    complete = [of_setting for of_setting in runs.differences.values() if len(of_setting) == len(seeds)]
    tables = [np.array([list(of_setting.values())]) for of_setting in runs.differences.values()]
    pooled = None
    if complete:
        columns = [[of_setting[seed] for seed in seeds] for of_setting in complete]
        pooled = pooled_verdict(np.array([columns]).transpose(0, 2, 1), rule, step=step)
    verdicts = verdicts_by_setting(tables, rule, step=step)
    return TableComparison(
        runs=runs,
        rule=rule,
        step=step,
        pooled=pooled,
        left_out=len(tables) - len(complete),
        settings=dict(zip(runs.differences, verdicts, strict=True)),
    )


def to_dict(comparison: TableComparison) -> dict[str, Any]:
    """Return plain values: differences in percentage points, as in summary.json; infinite settings as text."""
    runs, pooled = comparison.runs, comparison.pooled
    needed = replicates_needed(pooled)
    return {
        "table": str(runs.file),
        "metric": runs.metric,
        "a": runs.arms[0],
        "b": runs.arms[1],
        "margin": 100 * comparison.rule.margin,
        "alpha": comparison.rule.alpha,
        "step": 100 * comparison.step,
        "pooled": _values(pooled) if pooled else None,
        "left_out": comparison.left_out,
        "power_at_margin": power_at_margin(pooled) if pooled else None,
        "needed": {**needed._asdict(), "power": POWER} if needed else None,
        "settings": [
            {"setting": dict(zip(runs.columns, map(_json_value, setting), strict=True)), **_values(verdict)}
            for setting, verdict in comparison.settings.items()
        ],
    }


def table_lines(comparison: TableComparison) -> Iterator[str]:
    """Yield the comparison as paragraphs, and a line per setting if there are several."""
    runs, rule, pooled = comparison.runs, comparison.rule, comparison.pooled
    a, b = runs.arms
    pairs = sum(map(len, runs.differences.values()))
    others = f"; {plural(runs.other_rows, 'row')} of other arms left out" if runs.other_rows else ""
    yield paragraph(f"A = {a}, B = {b}: {plural(pairs, 'pair')} of {runs.file}, by {runs.metric}{others}")
    yield paragraph(
        f"margin ±{100 * rule.margin:g} percentage points; each test has the level {rule.alpha:g}, and counts that "
        f"{runs.metric} is rounded to {100 * comparison.step:.2g} points"
    )
    yield ""
    if pooled is None:
        yield "no verdict over all settings, since none has every seed; see the settings"
    else:
        yield paragraph(f"{b} against {a}: {_finding(pooled, comparison)}.")
        power = power_at_margin(pooled)
        if power is not None:
            yield paragraph(
                f"Power: this many pairs detect a true difference of the margin with a chance of {power:.2f}. "
                f"{needed_sentence(pooled).replace('the study has', 'the table has')}"
            )
    if len(comparison.settings) > 1:
        yield ""
        yield from _setting_lines(comparison)


def _finding(verdict: Verdict, comparison: TableComparison) -> str:
    return finding(verdict, of_a_filter=False, left_out=comparison.left_out, metric=comparison.runs.metric)


def _setting_lines(comparison: TableComparison) -> Iterator[str]:
    columns = comparison.runs.columns
    rows = [(*columns, "n", "B − A", "interval", "p (t)", "p (flips)", "p (TOST)", "verdict")]
    for setting, verdict in comparison.settings.items():
        estimate, tests = Estimate(**in_points(verdict.estimate)), verdict.tests
        rows.append(
            (
                *(MISSING if value is None else value_text(value) for value in setting),
                str(estimate.n),
                points(estimate.mean),
                points_interval(estimate),
                *(p_value(p) for p in ((tests.t, tests.sign_flip, tests.equivalence) if tests else (None,) * 3)),
                verdict.outcome,
            )
        )
    yield from aligned_lines(rows)
    tested = max(verdict.comparisons for verdict in comparison.settings.values())
    holm = f" after Holm for {tested} settings" if tested > 1 else ""
    alpha = comparison.rule.alpha
    yield paragraph(
        f"B − A in percentage points of {comparison.runs.metric} with its {100 * (1 - alpha):g} % t interval; p "
        f"unadjusted; verdicts{holm} at {number(alpha)}"
    )


def _json_value(value: Value) -> Value:
    """JSON has no infinity."""
    return value_text(value) if isinstance(value, float) and math.isinf(value) else value


def _values(verdict: Verdict) -> dict[str, Any]:
    return {
        "estimate": in_points(verdict.estimate),
        "verdict": verdict_values(verdict),
        "settings": verdict.settings,
    }
