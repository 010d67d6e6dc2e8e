"""`python -m pipeline compare A B`: compare experiment B with A by paired tests; or two arms of a table of runs.

A and B are git revisions of this repository, read from DVC's cache without a checkout, or folders with data/. Runs with
equal study, model, arm, filter network, batch size, simulated workers, learning rate, weight decay and seed are pairs.
The margin of equivalence is that of B's report, unless --margin is set; choose it before you see the results. The
confidence is also that of B's report, or 0.95 without one. If the test images of A and B differ or are unknown, there
is no verdict.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.artifacts.prepared import planted_note
from pipeline.artifacts.recorded import unrecorded_note
from pipeline.commands import command_parser
from pipeline.commands.compare.arms import compare_arms, table_lines
from pipeline.commands.compare.arms import to_dict as table_to_dict
from pipeline.commands.compare.experiments import Experiment, incomparable_reason, is_margin, read_experiment
from pipeline.commands.compare.report import filter_lines, paragraph, study_lines
from pipeline.commands.compare.run_table import read_runs
from pipeline.commands.compare.verdicts import (
    ArmVerdict,
    FilterComparison,
    StudyComparison,
    compare_filters,
    compare_study_runs,
)
from pipeline.errors import InputError
from pipeline.stats.comparisons import in_points, verdict_values
from pipeline.stats.verdict import DecisionRule, Verdict

_CONFIDENCE = 0.95
_MARGIN = 0.3
"""Default, in percentage points."""

MarginSource = Literal["arguments", "report", "default"]

_MARGIN_SOURCES: dict[MarginSource, str] = {
    "arguments": "from --margin",
    "report": "report.margin of B's report",
    "default": "the default, since B has no report with a margin",
}


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Margin of equivalence: differences of top-1 within ±`points` percentage points; `stated` is its source."""

    points: float
    stated: MarginSource


@dataclass(frozen=True, kw_only=True)
class ExperimentComparison:
    """Experiment B against A: accuracies and shares 0 to 1, their differences -1 to 1.

    Attributes:
        a, b: names from the command line.
        n_planted_a, n_planted_b: number of training labels changed on purpose; None for none.
        margin: of equivalence.
        alpha: probability of a false positive, 1 - `report.confidence` of B's report.
        studies: of both.
        filters: of networks that both filtered with.
        studies_only_a, studies_only_b: studies of one experiment alone.
        networks_only_a, networks_only_b: networks with which one experiment alone filtered.
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
    """Return the parser of this command."""
    parser = command_parser("compare", __doc__)
    parser.add_argument("a", metavar="A", help="baseline: a folder or git revision, e.g. HEAD~1; or a table of runs")
    parser.add_argument("b", metavar="B", nargs="?", help="new experiment: a folder (. for this one) or git revision")
    parser.add_argument("--arm", nargs=2, metavar=("A", "B"), help="two arms of the table: baseline and new one")
    parser.add_argument("--metric", metavar="COLUMN", help="column of the table to compare (default: metric)")
    parser.add_argument(
        "--percent", action="store_true", help="the column is in percent (0 to 100), not a share (0 to 1)"
    )
    parser.add_argument("--ignore", nargs="+", metavar="COLUMN", help="columns of the table that are not settings")
    parser.add_argument("--test-images", type=int, metavar="N", help="size of the table's test set, if it is known")
    parser.add_argument(
        "--batch-sizes",
        nargs="+",
        type=_size_pair,
        metavar="A:B",
        help="compare arm A at the first batch size with arm B at the second, e.g. 64:40 1024:616, by batch_size",
    )
    parser.add_argument(
        "--margin",
        type=_margin,
        metavar="POINTS",
        help="margin of equivalence of top-1 in percentage points "
        f"(default: report.margin of B's report, or {_MARGIN} without one)",
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON, in the units of summary.json")
    return parser


def main(argv: Sequence[str]) -> int:
    """Compare the experiments and print the result.

    Returns:
        0.

    Raises:
        InputError: A or B is not an experiment, or they share no study; a file is not what its stage wrote; or as
            `read_runs`.
    """
    arguments = make_parser().parse_args(argv)
    if arguments.arm:
        print("\n".join(_table_output(arguments)))
        return 0
    _check_experiments(arguments)
    a, b = read_experiment(arguments.a), read_experiment(arguments.b)
    comparison = compare(a, b, resolve_margin(arguments.margin, b))
    for experiment in (a, b):
        if experiment.unrecorded:
            print(f"{experiment.name}: {unrecorded_note(experiment.unrecorded)}", file=sys.stderr)
    print(json.dumps(to_dict(comparison), ensure_ascii=False, allow_nan=False) if arguments.json else _text(comparison))
    return 0


def _table_output(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the comparison of two arms of a table."""
    if arguments.b is not None:
        raise InputError(f"--arm: compares arms of one table, but {arguments.b} is given too; leave one out")
    n_images = arguments.test_images
    if n_images is not None and n_images < 1:
        raise InputError(f"--test-images: {n_images}; give the number of test images, or leave it out")
    sizes = dict(arguments.batch_sizes) if arguments.batch_sizes else None
    if sizes is not None and len(sizes) < len(arguments.batch_sizes):
        of = [size for size, _ in arguments.batch_sizes]
        twice = next(size for size in of if of.count(size) > 1)
        raise InputError(f"--batch-sizes: {twice} is given twice; give one batch size of the other arm for it")
    runs = read_runs(
        Path(arguments.a),
        arguments.arm,
        metric=arguments.metric or "metric",
        ignored=arguments.ignore or (),
        batch_sizes=sizes,
        percent=arguments.percent,
    )
    margin = _MARGIN if arguments.margin is None else arguments.margin
    rule = DecisionRule(margin=margin / 100, alpha=round(1 - _CONFIDENCE, 12))
    comparison = compare_arms(runs, rule, step=max(runs.step, 1 / n_images if n_images else 0.0))
    if arguments.json:
        yield json.dumps(table_to_dict(comparison), ensure_ascii=False, allow_nan=False, default=str)
    else:
        yield from table_lines(comparison)


def _check_experiments(arguments: argparse.Namespace) -> None:
    for option, value in (
        ("--metric", arguments.metric),
        ("--percent", arguments.percent or None),
        ("--ignore", arguments.ignore),
        ("--test-images", arguments.test_images),
        ("--batch-sizes", arguments.batch_sizes and ":".join(map(str, arguments.batch_sizes[0]))),
    ):
        if value is not None:
            raise InputError(f"{option}: is for a table of runs; give --arm A B too, or leave it out")
    if arguments.b is None:
        raise InputError(f"compare: B is missing; give a second experiment, or --arm A B for the table {arguments.a}")


def resolve_margin(requested: float | None, b: Experiment) -> Margin:
    """Return the requested margin in percentage points, else that of B's report, else the default."""
    if requested is not None:
        return Margin(points=requested, stated="arguments")
    return Margin(points=_MARGIN, stated="default") if b.margin is None else Margin(points=b.margin, stated="report")


def compare(a: Experiment, b: Experiment, margin: Margin) -> ExperimentComparison:
    """Compare all studies and filters that both experiments have.

    Raises:
        InputError: no common study, or as `compare_study_runs`.
    """
    common = [name for name in a.studies if name in b.studies]
    if not common:
        raise InputError(
            f"{a.name} and {b.name}: no study in common; the first has {', '.join(a.studies)}, "
            f"the second {', '.join(b.studies)}"
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
                no_verdict=incomparable_reason(name, a.evaluation_images, b.evaluation_images),
            )
            for name in common
        ],
        filters=compare_filters(a, b),
        studies_only_a=_missing(a.studies, b.studies),
        studies_only_b=_missing(b.studies, a.studies),
        networks_only_a=_missing(a.filters, b.filters),
        networks_only_b=_missing(b.filters, a.filters),
    )


def to_dict(comparison: ExperimentComparison) -> dict[str, Any]:
    """Return plain values: estimates and verdicts as in data/report/summary.json, settings as mappings."""
    return {
        **asdict(comparison),
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
            for study in comparison.studies
        ],
    }


def _arm_values(arm: ArmVerdict) -> dict[str, Any]:
    values = {**_verdict_values(arm.verdict), "settings": arm.verdict.settings} if arm.verdict else {}
    return {"arm": arm.arm, "left_out": arm.left_out, "estimate": None, "verdict": None, "settings": 0} | values


def _verdict_values(verdict: Verdict) -> dict[str, Any]:
    return {"estimate": in_points(verdict.estimate), "verdict": verdict_values(verdict)}


def _text(comparison: ExperimentComparison) -> str:
    return "\n".join(_lines(comparison))


def _lines(comparison: ExperimentComparison) -> Iterator[str]:
    for side, name, n_planted in (
        ("A", comparison.a, comparison.n_planted_a),
        ("B", comparison.b, comparison.n_planted_b),
    ):
        yield paragraph(f"{side} = {name}" if n_planted is None else f"{side} = {name}; {planted_note(n_planted)}")
    yield paragraph(
        f"margin ±{comparison.margin.points:g} percentage points, {_MARGIN_SOURCES[comparison.margin.stated]}"
    )
    yield paragraph(f"each test has the level {comparison.alpha:g}, its probability of a false positive")
    for study in comparison.studies:
        yield ""
        yield from study_lines(study)
    if comparison.filters:
        yield ""
        yield from filter_lines(comparison.filters)
    only = {
        "studies only in A": comparison.studies_only_a,
        "studies only in B": comparison.studies_only_b,
        "filters only in A": comparison.networks_only_a,
        "filters only in B": comparison.networks_only_b,
    }
    for heading, names in only.items():
        if names:
            yield paragraph(f"{heading}: {', '.join(names)}")


def _missing(names: Iterable[str], others: Iterable[str]) -> list[str]:
    return [name for name in names if name not in set(others)]


def _size_pair(text: str) -> tuple[int, int]:
    sizes = text.split(":")
    if len(sizes) != 2 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise argparse.ArgumentTypeError(f"{text} is not two batch sizes; give e.g. 1024:616")
    return int(sizes[0]), int(sizes[1])


def _margin(text: str) -> float:
    try:
        points = float(text)
    except ValueError:
        points = 0.0
    if not is_margin(points):
        raise argparse.ArgumentTypeError(f"{text} is not a number of percentage points above 0 and below 100")
    return points
