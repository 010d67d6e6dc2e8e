"""Compare measured results with the paper's numbers and claims, as plain values and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pipeline.config.study import PaperFigure
from pipeline.replication.claim_data import ClaimCriteria, RunRecord
from pipeline.replication.claims import CLAIMS, ClaimResult, evaluate_claims
from pipeline.replication.gain_slopes import gain_slopes
from pipeline.replication.published import PUBLISHED, Point
from pipeline.stats.formatting import MISSING, number, p_equals, p_value, plural, points
from pipeline.stats.replicates import TREATED
from pipeline.stats.tables import Table, make_table

_Rows = Sequence[Mapping[str, Any]]


def compare_with_published(figure: PaperFigure, accuracy: _Rows) -> dict[str, Any]:
    """Return a published figure, and for each of its points the measurements at the same setting.

    A measurement matches a point if both have the same arm, model and batch size, and the point names its weight
    decay. Measurements at any learning rate match, since no learning rate is published.

    Args:
        accuracy: rows of `study_summary`.

    Returns:
        source, data, statement, left_open, and points. Each point has its published values and these keys:

        - `measured`: label, variant, top1 as in `accuracy`, and difference (percentage points, measured - published).
        - `variant`: the one whose color and marker the point takes in a figure; None if its arm and model were not
          measured.
        - `missing`: the first part of the point's setting that the study lacks; None if the point was measured.
    """
    published = PUBLISHED[figure]
    return {
        "source": published.source,
        "data": published.data,
        "statement": published.statement,
        "left_open": list(published.left_open),
        "points": [_point(point, accuracy) for point in published.points],
    }


def _point(point: Point, accuracy: _Rows) -> dict[str, Any]:
    same_arm = [row for row in accuracy if row["top1"] and _matches_point(row, point)]
    same_decay = [row for row in same_arm if row["setting"]["weight_decay"] in point.weight_decays]
    matching = [row for row in same_decay if row["setting"]["batch_size"] == point.batch_size]
    return {
        "place": point.place,
        "arm": point.arm,
        "model": point.model,
        "batch_size": point.batch_size,
        "weight_decays": list(point.weight_decays),
        "top1": point.top1,
        "measured": [
            {
                "label": row["label"],
                "variant": row["variant"],
                "weight_decay": row["setting"]["weight_decay"],
                "top1": row["top1"],
                "difference": 100 * (row["top1"]["mean"] - point.top1),
            }
            for row in matching
        ],
        "variant": next((row["variant"] for row in (*matching, *same_decay, *same_arm)), None),
        "missing": None if matching else _missing_accuracy(point, accuracy),
    }


def _missing_accuracy(point: Point, accuracy: _Rows) -> str:
    """Return the first part of the point's setting that the study lacks."""
    same_arm = [row for row in accuracy if _matches_point(row, point)]
    if not same_arm:
        return f"arm {point.arm} of {point.model} is not in this study"
    if not {row["setting"]["weight_decay"] for row in same_arm} & {*point.weight_decays}:
        return f"weight decay {' or '.join(map(str, point.weight_decays))} is not in this study"
    if point.batch_size not in {row["setting"]["batch_size"] for row in same_arm}:
        return f"batch size {point.batch_size:,} is not in this study"
    return "no run finished"


def _matches_point(row: Mapping[str, Any], point: Point) -> bool:
    return bool(row["arm"] == point.arm and row["setting"]["model"] == point.model)


def claim_values(records: Sequence[RunRecord], criteria: ClaimCriteria) -> list[dict[str, Any]]:
    """Return a row for each claim, with numbers in the unit that `quantity` names, and the confidence of the interval.

    Args:
        records: the finished runs of all studies.
    """
    return [{**_claim_row(result), "confidence": 1 - criteria.alpha} for result in evaluate_claims(records, criteria)]


def slope_values(records: Sequence[RunRecord], criteria: ClaimCriteria) -> list[dict[str, Any]]:
    """Return the growth of the filtered arm's gain on each control with the batch size, in points per doubling.

    Args:
        records: the finished runs of one study.

    Returns:
        A row for each control that has two seeds and two batch sizes or more. `p` is the two-sided one of the t test,
        `confidence` that of the interval.
    """
    return [
        {"control": control, "p": evidence.p, "confidence": 1 - criteria.alpha, "evidence": asdict(evidence)}
        for control, evidence in gain_slopes(records, criteria).items()
    ]


def slope_table(study: Mapping[str, Any]) -> Table:
    """Build the table of gain slopes."""
    slopes = study["batch_slopes"]
    confidence = slopes[0]["confidence"] if slopes else 0.0
    rows = [
        (
            f"{TREATED} − {row['control']}",
            points(row["evidence"]["mean"]),
            f"{points(row['evidence']['low'])} to {points(row['evidence']['high'])}",
            p_value(row["p"]),
            p_value(row["evidence"]["sign_flip"]),
            ", ".join(f"{size:,}" for size in row["evidence"]["batch_sizes"]),
            _n_text(row["evidence"]),
        )
        for row in slopes
    ]
    return make_table(
        f"difference; growth per doubling of the batch size (points); {100 * confidence:g} % interval (points); p (t); "
        "p (sign flips); batch sizes; n",
        rows,
        text="difference; batch sizes; n",
    )


def claim_table(claims: Sequence[Mapping[str, Any]]) -> Table:
    """Build the table of claims: meaning, outcome and evidence."""
    rows = [
        (
            row["meaning"],
            row["outcome"],
            _evidence_text(row["evidence"], row["confidence"]),
            p_value(row["p"]),
            _required_runs(row),
        )
        for row in claims
    ]
    return make_table(
        "claim; outcome; evidence; p, after Holm; what a study needs",
        rows,
        text="claim; outcome; evidence; what a study needs",
    )


def _claim_row(result: ClaimResult) -> dict[str, Any]:
    claim, evidence = CLAIMS[result.name], result.evidence
    return {
        "name": result.name,
        "meaning": claim.meaning,
        "needs": claim.needs,
        "outcome": result.outcome,
        "p": result.p,
        "evidence": asdict(evidence) if evidence else None,
    }


def _evidence_text(evidence: Mapping[str, Any] | None, confidence: float) -> str:
    if evidence is None:
        return "no study has the required runs"
    low, high = number(evidence["low"]), number(evidence["high"])
    settings = f", each over {plural(evidence['settings'], 'setting')}" if evidence["settings"] > 1 else ""
    threshold = f" (true above {number(evidence['threshold'])})" if evidence["threshold"] else ""
    if evidence["left_out"]:
        settings += f"; {plural(evidence['left_out'], 'incomplete setting')} left out"
    interval = f"{100 * confidence:g} % interval {low} to {high}"
    estimate = f"{evidence['quantity']} {number(evidence['mean'])}{threshold}, {interval}"
    return f"{estimate}; n = {_n_text(evidence)}{settings}{_sign_flip_text(evidence)}".replace(" -", " −")


def _n_text(evidence: Mapping[str, Any]) -> str:
    n, unit = evidence["n"], evidence["unit"]
    if n > 1 and unit.startswith("replicate"):  # not `replicate of the filters`
        return f"{n} {unit.replace('replicate', 'replicates', 1)}"
    return plural(n, unit)


def _sign_flip_text(evidence: Mapping[str, Any]) -> str:
    p = evidence["sign_flip"]
    return "" if p is None else f"; {p_equals(p)} by sign flips, which decide nothing"


def _required_runs(row: Mapping[str, Any]) -> str:
    """Return what is needed to decide the claim; `MISSING` if it is decided."""
    if row["outcome"] == "undecided":
        return CLAIMS[row["name"]].decides
    return row["needs"] if row["evidence"] is None else MISSING
