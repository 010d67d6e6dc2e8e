"""`python -m pipeline compare A B`: what experiment B changed against A.

A and B are git revisions of this repository, read from DVC's cache without a checkout, or folders with data/. Runs of
both that share study, model, arm, filter network, batch size, simulated workers, learning rate, weight decay and seed
are pairs; a margin of equivalence belongs to the question and is to be chosen before the answer is seen: it is that of
B's report, unless given. The confidence is that of B's report too, 0.95 where it has none. Where test images of A and
B are unlike, or not known, there is no verdict.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pipeline.artifacts.prepared import planted_note
from pipeline.commands import command_parser
from pipeline.commands.comparison.experiments import Experiment, incomparable_reason, is_margin, read_experiment
from pipeline.commands.comparison.judging import (
    ArmVerdict,
    FilterComparison,
    StudyComparison,
    compare_filters,
    compare_study_runs,
)
from pipeline.commands.comparison.report import filter_lines, paragraph, study_lines
from pipeline.errors import InputError
from pipeline.stats.comparisons import in_points, verdict_values
from pipeline.stats.verdict import DecisionRule, Verdict

_CONFIDENCE = 0.95
_MARGIN = 0.3
"""Percentage points, where nobody has stated any."""

MarginSource = Literal["arguments", "report", "default"]

_MARGIN_SOURCES: dict[MarginSource, str] = {
    "arguments": "as --margin says",
    "report": "the report.margin of B's report",
    "default": "the default: B has no report that states one",
}


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Differences of top-1 nearer to 0 than `points` (percentage points) do not matter, as `stated` by whom."""

    points: float
    stated: MarginSource


@dataclass(frozen=True, kw_only=True)
class ExperimentComparison:
    """Experiment B against A: accuracies and shares 0 to 1, their differences -1 to 1.

    Attributes:
        a, b: what the user calls them.
        n_planted_a, n_planted_b: how many training labels were changed on purpose; None for none.
        alpha: chance of a false claim, of the `report.confidence` that B's report was made with.
        studies_only_a, studies_only_b: studies of one alone.
        networks_only_a, networks_only_b: networks with which one alone has filtered.
    """

    a: str
    b: str
    n_planted_a: int | None
    n_planted_b: int | None
    margin: Margin
    alpha: float
    studies: list[StudyComparison]
    filters: list[FilterComparison]
    studies_only_a: list[str]
    studies_only_b: list[str]
    networks_only_a: list[str]
    networks_only_b: list[str]


def make_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = command_parser("compare", __doc__)
    parser.add_argument("a", metavar="A", help="folder or git revision, e.g. HEAD~1: what it was")
    parser.add_argument("b", metavar="B", help="folder (. is what is here now) or git revision: what it became")
    parser.add_argument(
        "--margin",
        type=_margin,
        metavar="POINTS",
        help="differences of top-1 nearer to 0 than this do not matter; percentage points "
        f"(default: report.margin of B's report, and {_MARGIN} where it has none)",
    )
    parser.add_argument("--json", action="store_true", help="one line of JSON, in the units of summary.json")
    return parser


def main(argv: Sequence[str]) -> int:
    """Raises InputError where one is no experiment, or both have no study in common."""
    arguments = make_parser().parse_args(argv)
    a, b = read_experiment(arguments.a), read_experiment(arguments.b)
    found = compare(a, b, resolve_margin(arguments.margin, b))
    print(json.dumps(to_dict(found), ensure_ascii=False, allow_nan=False) if arguments.json else _text(found))
    return 0


def resolve_margin(given: float | None, b: Experiment) -> Margin:
    """The given one goes before that of B's report, in percentage points."""
    if given is not None:
        return Margin(points=given, stated="arguments")
    return Margin(points=_MARGIN, stated="default") if b.margin is None else Margin(points=b.margin, stated="report")


def compare(a: Experiment, b: Experiment, margin: Margin) -> ExperimentComparison:
    """Everything that both have.

    Raises:
        InputError: no common study, or as `compare_study_runs`.
    """
    common = [name for name in a.studies if name in b.studies]
    if not common:
        raise InputError(
            f"{a.name} and {b.name}: no study in common; the one has {', '.join(a.studies)}, "
            f"the other {', '.join(b.studies)}"
        )
    confidence = _CONFIDENCE if b.confidence is None else b.confidence
    rule = DecisionRule(margin=margin.points / 100, alpha=round(1 - confidence, 12))
    step = 1 / min(a.n_images, b.n_images)
    return ExperimentComparison(
        a=a.name,
        b=b.name,
        n_planted_a=a.n_planted,
        n_planted_b=b.n_planted,
        margin=margin,
        alpha=rule.alpha,
        studies=[
            compare_study_runs(
                name,
                a.studies[name],
                b.studies[name],
                rule,
                step=step,
                no_verdict=incomparable_reason(name, a.tested, b.tested),
            )
            for name in common
        ],
        filters=compare_filters(a, b),
        studies_only_a=_missing(a.studies, b.studies),
        studies_only_b=_missing(b.studies, a.studies),
        networks_only_a=_missing(a.filters, b.filters),
        networks_only_b=_missing(b.filters, a.filters),
    )


def to_dict(found: ExperimentComparison) -> dict[str, Any]:
    """Plain values; estimates and verdicts as in data/report/summary.json, settings as mappings by their fields."""
    return {
        **asdict(found),
        "studies": [
            {
                **asdict(study),
                "pooled": [_arm_values(arm) for arm in study.pooled],
                "settings": [
                    {"setting": row.setting._asdict(), **_verdict_values(row.verdict)} for row in study.settings
                ],
                "only_a": [setting._asdict() for setting in study.only_a],
                "only_b": [setting._asdict() for setting in study.only_b],
            }
            for study in found.studies
        ],
    }


def _arm_values(arm: ArmVerdict) -> dict[str, Any]:
    judged = {**_verdict_values(arm.verdict), "settings": arm.verdict.settings} if arm.verdict else {}
    return {"arm": arm.arm, "left_out": arm.left_out, "estimate": None, "verdict": None, "settings": 0} | judged


def _verdict_values(verdict: Verdict) -> dict[str, Any]:
    return {"estimate": in_points(verdict.estimate), "verdict": verdict_values(verdict)}


def _text(found: ExperimentComparison) -> str:
    return "\n".join(_lines(found))


def _lines(found: ExperimentComparison) -> Iterator[str]:
    for side, name, n_planted in (("A", found.a, found.n_planted_a), ("B", found.b, found.n_planted_b)):
        yield paragraph(f"{side} = {name}" if n_planted is None else f"{side} = {name}; {planted_note(n_planted)}")
    yield paragraph(f"margin ±{found.margin.points:g} percentage points, {_MARGIN_SOURCES[found.margin.stated]}")
    yield paragraph(f"each test has the level {found.alpha:g}: the chance that it finds what is not there")
    for study in found.studies:
        yield ""
        yield from study_lines(study)
    if found.filters:
        yield ""
        yield from filter_lines(found.filters)
    alone = {
        "studies only in A": found.studies_only_a,
        "studies only in B": found.studies_only_b,
        "filters only in A": found.networks_only_a,
        "filters only in B": found.networks_only_b,
    }
    for what, names in alone.items():
        if names:
            yield paragraph(f"{what}: {', '.join(names)}")


def _missing(names: Iterable[str], others: Iterable[str]) -> list[str]:
    return [name for name in names if name not in set(others)]


def _margin(text: str) -> float:
    try:
        points = float(text)
    except ValueError:
        points = 0.0
    if not is_margin(points):
        raise argparse.ArgumentTypeError(f"{text} is no number of percentage points above 0 and below 100")
    return points
