"""The lines of a study's figures, from its summary."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.stats.runs import Run, describe
from viz.figures.batch_curves import BatchCurve, PublishedValue
from viz.figures.learning import LearningCurve
from viz.figures.palette import LineKey
from viz.figures.run_curves import RunCurve, RunCurves

TOP1_TITLE = "test top-1 (%)"
POINTS_TITLE = "difference in top-1 (percentage points)"


def accuracy_curves(study: Mapping[str, Any]) -> list[BatchCurve]:
    """One curve for each arm and variant, in percent."""
    return _batch_curves(
        (LineKey(row["arm"], row["variant"]), row["setting"]["batch_size"], _percent(row["top1"]))
        for row in study["accuracy"]
        if row["top1"]
    )


def published_values(study: Mapping[str, Any]) -> list[PublishedValue]:
    """The points, in percent, of the figure that the study is held beside, each in the look of the line it belongs to.

    Points of an arm or a model that was not measured have no line and are left out; the report's table has them.
    """
    points = study["published"]["points"] if study["published"] else []
    return [
        PublishedValue(
            key=LineKey(point["arm"], point["variant"]),
            label=f"published: {point['arm']}, wd {' or '.join(map(str, point['weight_decays']))}",
            batch_size=point["batch_size"],
            value=100 * point["top1"],
        )
        for point in points
        if point["variant"] is not None
    ]


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


def run_curves(study: Mapping[str, Any], runs: Sequence[Run], batch_size: int) -> list[RunCurves]:
    """One line for each arm and variant at `batch_size`: all runs that took a step, and the mean of the finished.

    Args:
        study: the summary of `runs`.
    """
    lines: dict[LineKey, list[RunCurve]] = {}
    several = len({run.filter_network for run in runs}) > 1
    for run in runs:
        if run.setting.batch_size == batch_size and run.history:
            key = LineKey(run.arm, describe(run.setting, study["varying"]))
            lines.setdefault(key, []).append(_run_curve(run, several))
    means = {
        LineKey(row["arm"], row["variant"]): [
            (examples // batch_size, loss) for examples, loss in zip(row["examples"], row["train_loss"], strict=True)
        ]
        for row in study["learning"]
        if row["batch_size"] == batch_size
    }
    return [RunCurves(key=key, mean=means.get(key, []), runs=of_line) for key, of_line in sorted(lines.items())]


def _run_curve(run: Run, several_draws: bool) -> RunCurve:
    names = [f"seed {run.seed}", f"filter of {run.filter_network}" if several_draws else "", run.status]
    return RunCurve(
        name=", ".join(name for name in names if name not in ("", "finished")),
        points=[(examples // run.setting.batch_size, loss) for examples, loss in run.history if loss is not None],
        diverged=run.status == "diverged",
    )


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
