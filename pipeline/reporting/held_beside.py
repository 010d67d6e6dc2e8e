"""A study's accuracies beside those of the published figure that it names."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config.study import Figure
from pipeline.reporting.published import PUBLISHED, Point

_Rows = Sequence[Mapping[str, Any]]


def held_beside(figure: Figure, accuracy: _Rows) -> dict[str, Any]:
    """What is published, and for each of its points what was measured at the same setting.

    A point belongs to the variants that share its arm, model, batch size and one of its weight decays; learning rates
    are not published, so all of them do.

    Args:
        accuracy: rows of `study_summary`.

    Returns:
        source, data, statement, left_open, and points: each with its published values, `measured` (label, variant,
        top1 as in `accuracy`, and difference in percentage points, measured minus published), `variant` (whose look
        the point takes in a figure; None if its arm and model were not measured) and `missing` (what the study
        lacks of the point's setting; None if it was measured).
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
    alike = [row for row in accuracy if row["top1"] and _is_of(row, point)]
    same_decay = [row for row in alike if row["setting"]["weight_decay"] in point.weight_decays]
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
        "variant": next((row["variant"] for row in (*matching, *same_decay, *alike)), None),
        "missing": None if matching else _missing(point, accuracy),
    }


def _missing(point: Point, accuracy: _Rows) -> str:
    """The first part of the point's setting that the study does not have."""
    of_arm = [row for row in accuracy if _is_of(row, point)]
    if not of_arm:
        return f"arm {point.arm} of {point.model} is not in this study"
    if not {row["setting"]["weight_decay"] for row in of_arm} & {*point.weight_decays}:
        return f"weight decay {' or '.join(map(str, point.weight_decays))} is not in this study"
    if point.batch_size not in {row["setting"]["batch_size"] for row in of_arm}:
        return f"batch size {point.batch_size:,} is not in this study"
    return "no run finished"


def _is_of(row: Mapping[str, Any], point: Point) -> bool:
    return bool(row["arm"] == point.arm and row["setting"]["model"] == point.model)
