"""The test of the effective batch as plain values, with its sentences, for the report and the visualizer."""

from collections.abc import Sequence
from typing import Any

from pipeline.stats.comparisons import (
    AnalysisPlan,
    Comparison,
    compare_arms,
    pooled_values,
    seeds_used,
    setting_values,
)
from pipeline.stats.estimates import Estimate
from pipeline.stats.formatting import MISSING, count, finding, p_value, points, points_interval, spread
from pipeline.stats.replicates import SHARED
from pipeline.stats.runs import Run
from pipeline.stats.tables import Table, make_table

Values = dict[str, Any]


def equivalent_comparison(runs: Sequence[Run], plan: AnalysisPlan) -> Comparison | None:
    """Compare the filtered arm at smaller batches with the full arm, at equal steps; None unless the plan states it.

    It is never primary. Its settings are those of the full arm.
    """
    if not plan.equivalent_sizes:
        return None
    return compare_arms(runs, SHARED, plan, seeds_used(runs, plan), treated_sizes=plan.equivalent_sizes)


def equivalent_batch_values(runs: Sequence[Run], plan: AnalysisPlan) -> Values | None:
    """Return the verdict over all settings and at each, Holm-adjusted, in percentage points; None if not stated."""
    comparison = equivalent_comparison(runs, plan)
    if comparison is None:
        return None
    rows = setting_values(comparison, lambda setting: {"treated_size": plan.equivalent_sizes[setting.batch_size]})
    return {**pooled_values(comparison, plan), **_sentences(comparison, plan), "settings_by_size": rows}


def _sentences(comparison: Comparison, plan: AnalysisPlan) -> Values:
    """Return the sentences with the sizes of both arms; `primary` and `headline` are those of no other comparison."""
    sizes = ", ".join(f"{count(small)} for {count(large)}" for large, small in sorted(plan.equivalent_sizes.items()))
    title = f"{comparison.treated} against {comparison.control} at a smaller batch ({sizes}) and equal steps"
    if comparison.pooled is None:
        return {
            "headline": f"{title}: nothing to compare",
            "sentence": f"{title}: nothing to compare, since in no setting all seeds of both arms finished.",
        }
    return {
        "headline": f"{title}: {comparison.pooled.outcome}",
        "sentence": f"{title}: {finding(comparison.pooled, left_out=comparison.left_out)}.",
    }


def equivalent_batch_table(values: Values, confidence: float, margin: float) -> Table:
    """Build the table of the test at each setting.

    Args:
        values: of `equivalent_batch_values`.
        confidence: of the intervals, in (0, 1).
        margin: of equivalence, in percentage points.
    """
    rows = []
    for row in values["settings_by_size"]:
        estimate = Estimate(**row["estimate"]) if row["estimate"] else None
        tests = row["verdict"]["p"] if row["verdict"] else None
        names = ("t", "sign_flip", "equivalence", "adjusted_difference", "adjusted_equivalence")
        rows.append(
            (
                count(row["setting"]["batch_size"]),
                count(row["treated_size"]),
                row["verdict"]["outcome"] if row["verdict"] else MISSING,
                points(estimate.mean) if estimate else MISSING,
                spread(estimate.sd) if estimate else MISSING,
                points_interval(estimate) if estimate else MISSING,
                str(estimate.n) if estimate else "0",
                *(p_value(tests[name] if tests else None) for name in names),
            )
        )
    return make_table(
        "batch size of full; of filtered; verdict; filtered − full, mean (points); sd (points); "
        f"{100 * confidence:g} % interval (points); n (paired seeds, or draws); p, t test; p, sign flips; "
        f"p, equivalence within ±{margin:.2f}; after Holm: p, difference; after Holm: p, equivalence",
        rows,
        text="verdict",
    )
