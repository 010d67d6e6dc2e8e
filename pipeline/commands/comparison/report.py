"""A comparison as text for a terminal of WIDTH columns."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from pipeline.commands.comparison.judging import FilterComparison, SettingVerdict, StudyComparison
from pipeline.commands.comparison.pairing import ColumnDifference, PairSetting
from pipeline.stats.comparisons import in_points
from pipeline.stats.estimates import Estimate
from pipeline.stats.formatting import MISSING, count, finding, number, p_value, percent, plural, points, points_interval

WIDTH = 100
_INDENT = "  "
_SHORT = {"model": "", "filter_network": "filter ", "simulated_workers": "simulated workers "}
_SHORT |= {"learning_rate": "lr ", "weight_decay": "wd "}


def study_lines(found: StudyComparison) -> Iterator[str]:
    """The verdict on a study first, then what it rests on."""
    yield f"study {found.study}"
    for verdict in _verdicts(found):
        yield from _paragraph(verdict)
    yield from _paragraph(_counts(found))
    for difference in found.differing:
        yield from _paragraph(_difference(difference, found.pairs))
    if found.settings:
        yield ""
        yield from _table(found.settings)
    for name, settings in (("A", found.only_a), ("B", found.only_b)):
        if settings:
            yield ""
            yield f"{_INDENT}only in {name}:"
            yield from _only(settings)


def filter_lines(filters: Sequence[FilterComparison]) -> Iterator[str]:
    """What the filters of both experiments kept, a line a network."""
    yield "filters, images told apart by path"
    rows = [
        (
            found.network,
            percent(found.share_a),
            percent(found.share_b),
            f"{found.jaccard:.4f}",
            count(found.only_a),
            count(found.only_b),
        )
        for found in filters
    ]
    yield from _aligned([("network", "A keeps (%)", "B keeps (%)", "Jaccard", "A alone", "B alone"), *rows])


def paragraph(text: str) -> str:
    """`text` on lines of WIDTH columns at most."""
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def _verdicts(found: StudyComparison) -> Iterator[str]:
    if found.same_runs and not found.pairs:
        yield "B against A: the very same runs, so that there is nothing to test."
    elif found.no_verdict:
        yield f"B against A: no verdict, since {found.no_verdict}."
    elif not found.pooled:
        yield "B against A: nothing to compare, since no setting has a run that finished in both."
    for arm in found.pooled:
        what = f"B against A, arm {arm.arm.replace('_', ' ')}"
        if arm.verdict is None:
            yield f"{what}: nothing to compare, since no setting has all seeds and draws finished in both."
        else:
            of_a_filter = any(row.setting.filter_network for row in found.settings if row.setting.arm == arm.arm)
            yield f"{what}: {finding(arm.verdict, of_a_filter=of_a_filter, left_out=arm.left_out, family='arms')}."


def _counts(found: StudyComparison) -> str:
    parts = [f"{plural(found.runs_a, 'run')} in A, {count(found.runs_b)} in B: {plural(found.pairs, 'pair')}"]
    if found.same_runs:
        parts.append(f"{plural(found.same_runs, 'pair')} more of one and the same run, not tested")
    if found.unfinished:
        parts.append(f"{count(found.unfinished)} with a run that was skipped or diverged")
    if found.unpaired:
        parts.append(f"{plural(found.unpaired, 'run')} without a partner of its seed and draw")
    return f"{'; '.join(parts)}."


def _difference(found: ColumnDifference, pairs: int) -> str:
    share = "" if found.pairs == pairs else f" in {count(found.pairs)} of {plural(pairs, 'pair')}"
    if found.a is None and found.b is None:
        return f"differs: {found.column}{share}"
    return f"differs: {found.column} {_value(found.a)} -> {_value(found.b)}{share}"


def _value(value: Any) -> str:
    return number(value) if isinstance(value, float) else MISSING if value is None else str(value)


def _table(rows: Sequence[SettingVerdict]) -> Iterator[str]:
    """A line a setting, in groups of what beside arm and batch size tells settings apart."""
    varying = _varying([row.setting for row in rows])
    heads = ("arm", "batch", "n", "B − A", "interval", "t", "flips", "TOST", "verdict")
    ordered = sorted(rows, key=lambda row: ([getattr(row.setting, name) for name in varying], row.setting))
    groups = [(name, list(group)) for name, group in groupby(ordered, lambda row: _described(row.setting, varying))]
    lines = list(_aligned([heads, *(_cells(row) for _, group in groups for row in group)]))
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
    found = rows[0].verdict
    adjusted = f" after Holm for {found.comparisons} settings" if found.comparisons > 1 else ""
    yield from _paragraph(
        f"B − A in percentage points of top-1 with its {100 * (1 - found.rule.alpha):g} % t interval; p of the "
        f"paired t test, of the sign flips, and of equivalence within ±{100 * found.rule.margin:g} points (TOST), "
        f"each as it is; verdicts{adjusted} at {found.rule.alpha:g}."
    )


def _only(settings: Sequence[PairSetting]) -> Iterator[str]:
    """Settings that differ in the batch size alone share a line."""
    groups: dict[PairSetting, list[int]] = {}
    for setting in settings:
        groups.setdefault(setting._replace(batch_size=0), []).append(setting.batch_size)
    for setting, sizes in groups.items():
        parts = (setting.arm, _described(setting, _SHORT), f"batch {', '.join(map(count, sizes))}")
        yield from _paragraph(", ".join(parts), indent=2)


def _varying(settings: Sequence[PairSetting]) -> list[str]:
    """Names of the fields of which a line must tell the value. Arms without a filter do not make one vary."""
    named = {name: {getattr(setting, name) for setting in settings} - {""} for name in _SHORT}
    return [name for name, values in named.items() if len(values) > 1]


def _described(setting: PairSetting, fields: Iterable[str]) -> str:
    values = {name: getattr(setting, name) for name in fields}
    return ", ".join(f"{_SHORT[name]}{value}" for name, value in values.items() if value != "")


def _paragraph(text: str, *, indent: int = 1) -> list[str]:
    first = _INDENT * indent
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=first + _INDENT, break_on_hyphens=False)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns two blanks apart: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [f"{first:<{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))]
        yield f"{_INDENT}{'  '.join(cells)}"
