"""Text of a comparison for a terminal of WIDTH columns."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from pipeline.commands.compare.verdicts import (
    ColumnDifference,
    FilterComparison,
    PairSetting,
    SettingVerdict,
    StudyComparison,
)
from pipeline.stats.comparisons import in_points
from pipeline.stats.estimates import Estimate
from pipeline.stats.formatting import (
    MISSING,
    aligned_lines,
    count,
    finding,
    number,
    p_value,
    percent,
    plural,
    points,
    points_interval,
)

WIDTH = 100
_INDENT = "  "
_SHORT = {"model": "", "filter_network": "filter ", "simulated_workers": "simulated workers "}
_SHORT |= {"learning_rate": "lr ", "weight_decay": "wd "}


def study_lines(comparison: StudyComparison) -> Iterator[str]:
    """Yield the verdicts on a study, then the pairs and settings behind them."""
    yield f"study {comparison.study}"
    for verdict in _verdicts(comparison):
        yield from _paragraph(verdict)
    yield from _paragraph(_counts(comparison))
    for difference in comparison.differing:
        yield from _paragraph(_difference(difference, comparison.pairs))
    if comparison.settings:
        yield ""
        yield from _table(comparison.settings)
    for name, settings in (("A", comparison.only_a), ("B", comparison.only_b)):
        if settings:
            yield ""
            yield f"{_INDENT}only in {name}:"
            yield from _only(settings)


def filter_lines(filters: Sequence[FilterComparison]) -> Iterator[str]:
    """Yield a line per network about the images that the filters of both experiments kept."""
    yield "filters, images identified by path"
    rows = [
        (
            comparison.network,
            percent(comparison.share_a),
            percent(comparison.share_b),
            f"{comparison.jaccard:.4f}",
            count(comparison.only_a),
            count(comparison.only_b),
        )
        for comparison in filters
    ]
    headers = ("network", "A keeps (%)", "B keeps (%)", "Jaccard", "only A", "only B")
    yield from (f"{_INDENT}{line}" for line in aligned_lines([headers, *rows], left=1))


def paragraph(text: str) -> str:
    """Wrap `text` to lines of at most WIDTH columns."""
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def _verdicts(comparison: StudyComparison) -> Iterator[str]:
    if comparison.same_runs and not comparison.pairs:
        yield "B against A: nothing to test, since both have the same runs."
    elif comparison.no_verdict:
        yield f"B against A: no verdict, since {comparison.no_verdict}."
    elif not comparison.pooled:
        yield "B against A: nothing to compare, since no setting has a run that finished in both."
    for arm in comparison.pooled:
        heading = f"B against A, arm {arm.arm.replace('_', ' ')}"
        if arm.verdict is None:
            yield f"{heading}: nothing to compare, since no setting has all seeds and filter replicates in both."
        else:
            filtered = any(row.setting.filter_network for row in comparison.settings if row.setting.arm == arm.arm)
            yield f"{heading}: {finding(arm.verdict, of_a_filter=filtered, left_out=arm.left_out, family='arms')}."


def _counts(comparison: StudyComparison) -> str:
    parts = [
        f"{plural(comparison.runs_a, 'run')} in A, {count(comparison.runs_b)} in B: {plural(comparison.pairs, 'pair')}"
    ]
    if comparison.same_runs:
        parts.append(f"{plural(comparison.same_runs, 'pair')} more of the same run, not tested")
    if comparison.unfinished:
        parts.append(f"{count(comparison.unfinished)} with a run that was skipped or diverged")
    if comparison.unpaired:
        parts.append(f"{plural(comparison.unpaired, 'run')} without a partner of its seed and filter replicate")
    return f"{'; '.join(parts)}."


def _difference(comparison: ColumnDifference, pairs: int) -> str:
    share = "" if comparison.pairs == pairs else f" in {count(comparison.pairs)} of {plural(pairs, 'pair')}"
    if comparison.a is None and comparison.b is None:
        return f"differs: {comparison.column}{share}"
    return f"differs: {comparison.column} {_value(comparison.a)} -> {_value(comparison.b)}{share}"


def _value(value: Any) -> str:
    return number(value) if isinstance(value, float) else MISSING if value is None else str(value)


def _table(rows: Sequence[SettingVerdict]) -> Iterator[str]:
    """Yield a line per setting, in groups by the fields other than arm and batch size that vary."""
    varying = _varying([row.setting for row in rows])
    headers = ("arm", "batch", "n", "B − A", "interval", "t", "flips", "TOST", "verdict")
    ordered = sorted(rows, key=lambda row: ([getattr(row.setting, name) for name in varying], row.setting))
    groups = [(name, list(group)) for name, group in groupby(ordered, lambda row: _described(row.setting, varying))]
    table = [headers, *(_cells(row) for _, group in groups for row in group)]
    lines = [f"{_INDENT}{line}" for line in aligned_lines(table, left=1)]
    yield lines[0]
    at = 1
    for name, group in groups:
        if name:
            yield f"{_INDENT}{name}"
        yield from lines[at : at + len(group)]
        at += len(group)
    yield from _legend(rows)


def _cells(row: SettingVerdict) -> tuple[str, ...]:
    estimate, tests = Estimate(**in_points(row.verdict.estimate)), row.verdict.tests
    return (
        row.setting.arm,
        count(row.setting.batch_size),
        str(estimate.n),
        points(estimate.mean),
        points_interval(estimate),
        p_value(tests.t if tests else None),
        p_value(tests.sign_flip if tests else None),
        p_value(tests.equivalence if tests else None),
        row.verdict.outcome,
    )


def _legend(rows: Sequence[SettingVerdict]) -> Iterator[str]:
    comparison = rows[0].verdict
    adjusted = f" after Holm for {comparison.comparisons} settings" if comparison.comparisons > 1 else ""
    yield from _paragraph(
        f"B − A in percentage points of top-1 with its {100 * (1 - comparison.rule.alpha):g} % t interval; p of the "
        f"paired t test, of the sign flips, and of equivalence within ±{100 * comparison.rule.margin:g} points (TOST), "
        f"unadjusted; verdicts{adjusted} at {comparison.rule.alpha:g}."
    )


def _only(settings: Sequence[PairSetting]) -> Iterator[str]:
    """Yield settings; those that differ only in the batch size share a line."""
    groups: dict[PairSetting, list[int]] = {}
    for setting in settings:
        groups.setdefault(setting._replace(batch_size=0), []).append(setting.batch_size)
    for setting, sizes in groups.items():
        parts = (setting.arm, _described(setting, _SHORT), f"batch {', '.join(map(count, sizes))}")
        yield from _paragraph(", ".join(parts), indent=2)


def _varying(settings: Sequence[PairSetting]) -> list[str]:
    """Return the fields that vary between settings. Arms without a filter do not count."""
    named = {name: {getattr(setting, name) for setting in settings} - {""} for name in _SHORT}
    return [name for name, values in named.items() if len(values) > 1]


def _described(setting: PairSetting, fields: Iterable[str]) -> str:
    values = {name: getattr(setting, name) for name in fields}
    return ", ".join(f"{_SHORT[name]}{value}" for name, value in values.items() if value != "")


def _paragraph(text: str, *, indent: int = 1) -> list[str]:
    first = _INDENT * indent
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=first + _INDENT, break_on_hyphens=False)
