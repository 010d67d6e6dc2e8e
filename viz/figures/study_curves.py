"""The lines of a study's figures, from its summary."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from viz.figures.batch_curves import BatchCurve
from viz.figures.learning import LearningCurve
from viz.figures.palette import LineKey

TOP1_TITLE = "test top-1 (%)"
POINTS_TITLE = "difference in top-1 (percentage points)"


def accuracy_curves(study: Mapping[str, Any]) -> list[BatchCurve]:
    """One curve for each arm and variant, in percent."""
    return _batch_curves(
        (LineKey(row["arm"], row["variant"]), row["setting"]["batch_size"], _percent(row["top1"]))
        for row in study["accuracy"]
        if row["top1"]
    )


def difference_curves(study: Mapping[str, Any]) -> list[BatchCurve]:
    """One curve for each control and variant, in percentage points; in the control's colour."""
    return _batch_curves(
        (
            (LineKey(row["control"], row["variant"]), row["setting"]["batch_size"], row["estimate"])
            for row in study["differences"]
            if row["estimate"]
        ),
        label="filtered − {}",
    )


def learning_panels(study: Mapping[str, Any]) -> dict[str, list[LearningCurve]]:
    """Panel title -> curves, one panel for each batch size."""
    panels: dict[str, list[LearningCurve]] = {}
    for row in sorted(study["learning"], key=lambda row: row["batch_size"]):
        curve = LearningCurve(key=LineKey(row["arm"], row["variant"]), examples=row["examples"], loss=row["train_loss"])
        panels.setdefault(f"batch size {row['batch_size']:,}", []).append(curve)
    return panels


def _batch_curves(values: Iterable[tuple[LineKey, int, Mapping[str, Any]]], label: str = "{}") -> list[BatchCurve]:
    lines: dict[LineKey, list[tuple[int, Mapping[str, Any]]]] = {}
    for key, batch_size, estimate in values:
        lines.setdefault(key, []).append((batch_size, estimate))
    return [_batch_curve(key, label.format(key), sorted(line, key=lambda at: at[0])) for key, line in lines.items()]


def _batch_curve(key: LineKey, label: str, line: Sequence[tuple[int, Mapping[str, Any]]]) -> BatchCurve:
    estimates = [estimate for _, estimate in line]
    return BatchCurve(
        key=key,
        label=label,
        batch_sizes=[batch_size for batch_size, _ in line],
        values=[estimate["mean"] for estimate in estimates],
        low=[estimate["low"] for estimate in estimates],
        high=[estimate["high"] for estimate in estimates],
        n=[estimate["n"] for estimate in estimates],
    )


def _percent(estimate: Mapping[str, Any]) -> dict[str, Any]:
    scaled = {key: estimate[key] and 100 * estimate[key] for key in ("mean", "low", "high")}
    return {**estimate, **scaled}
