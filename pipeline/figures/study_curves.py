"""Convert a study's summary to the lines of its figures."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.figures.batch_curves import BatchCurve, PublishedValue
from pipeline.figures.curves import LearningCurve, RunCurve, RunCurves
from pipeline.figures.rate_curves import RateCurve
from pipeline.figures.style import LineKey, LineStyle, line_styles
from pipeline.stats.runs import Quantity, Run, describe

TOP1_TITLE = "test top-1 (%)"
POINTS_TITLE = "difference in top-1 (percentage points)"


def study_styles(study: Mapping[str, Any]) -> dict[LineKey, LineStyle]:
    """Return the style of each of a study's lines, equal in all of its figures."""
    return line_styles([LineKey(row["arm"], row["variant"]) for row in study["accuracy"]])


def accuracy_curves(study: Mapping[str, Any]) -> list[BatchCurve]:
    """Return one curve for each arm and variant, in percent; intervals are clipped to 0 and 100 %.

    The smaller batches of `equivalent_batch`, which have the steps of a larger batch, are not on the curves.
    """
    added = {row["treated_size"] for row in (study["equivalent_batch"] or {}).get("settings_by_size", ())}
    added -= {row["setting"]["batch_size"] for row in study["accuracy"] if row["arm"] != "filtered"}
    return _batch_curves(
        study_styles(study),
        (
            (LineKey(row["arm"], row["variant"]), row["setting"]["batch_size"], _percent(row["top1"]))
            for row in study["accuracy"]
            if row["top1"] and row["setting"]["batch_size"] not in added
        ),
    )


def published_values(study: Mapping[str, Any]) -> list[PublishedValue]:
    """Return the points, in percent, of the published figure, each in the style of its line.

    Points of an arm or a model that was not measured have no line and are left out; the report's table has them.
    """
    points, styles = study["published"]["points"] if study["published"] else [], study_styles(study)
    return [
        PublishedValue(
            style=styles[LineKey(point["arm"], point["variant"])],
            label=f"published: {point['arm']}, wd {' or '.join(map(str, point['weight_decays']))}",
            batch_size=point["batch_size"],
            value=100 * point["top1"],
        )
        for point in points
        if point["variant"] is not None
    ]


def difference_curves(study: Mapping[str, Any]) -> list[BatchCurve]:
    """Return one curve for each control and variant, in percentage points, in the control's style."""
    return _batch_curves(
        study_styles(study),
        (
            (LineKey(row["control"], row["variant"]), row["setting"]["batch_size"], row["estimate"])
            for row in study["differences"]
            if row["estimate"]
        ),
        label="filtered − {}",
    )


def best_batch_curves(study: Mapping[str, Any]) -> list[RateCurve]:
    """Return one curve for each arm and variant, apart from the learning rate."""
    lines: dict[LineKey, list[Mapping[str, Any]]] = {}
    for row in study["best_batch"]:
        lines.setdefault(LineKey(row["arm"], row["variant"]), []).append(row)
    styles = line_styles(list(lines))
    return [
        RateCurve(
            key=key,
            style=styles[key],
            rates=[row["setting"]["learning_rate"] for row in rows],
            sizes=[row["by_seed"]["mean"] for row in rows],
            low=[row["by_seed"]["low"] for row in rows],
            high=[row["by_seed"]["high"] for row in rows],
            of_seeds=[row["of_seeds"] for row in rows],
            at_end=[row["seeds_at_end"] > 0 for row in rows],
        )
        for key, rows in lines.items()
    ]


def sizes_tried(study: Mapping[str, Any]) -> list[int]:
    """Return all batch sizes tried, ascending."""
    return sorted({size for row in study["best_batch"] for size in row["batch_sizes"]})


def learning_panels(study: Mapping[str, Any], quantity: Quantity) -> dict[str, list[LearningCurve]]:
    """Return panel title -> curves, one panel for each batch size; accuracies in percent."""
    scale = 100 if quantity == "top1" else 1
    panels: dict[str, list[LearningCurve]] = {}
    styles = study_styles(study)
    for row in sorted(study["learning"][quantity], key=lambda row: row["batch_size"]):
        key = LineKey(row["arm"], row["variant"])
        values = [scale * value for value in row["values"]]
        curve = LearningCurve(key=key, style=styles[key], x=row.get("x", row["examples"]), values=values)
        panels.setdefault(f"batch size {row['batch_size']:,}", []).append(curve)
    return panels


def run_curves(study: Mapping[str, Any], runs: Sequence[Run], batch_size: int) -> list[RunCurves]:
    """Return one line for each arm and variant at `batch_size`: all runs with a step, and the mean of the finished.

    Args:
        study: the summary of `runs`.
    """
    styles = study_styles(study)
    lines: dict[LineKey, list[RunCurve]] = {key: [] for key in styles}
    several = len({run.filter_network for run in runs}) > 1
    for run in runs:
        if run.setting.batch_size == batch_size and run.history:
            key = LineKey(run.arm, describe(run.setting, study["varying"]))
            lines[key].append(_run_curve(run, several))
    # Growing batches record the steps; otherwise the images give them.
    grown = {
        examples: step
        for run in runs
        if run.setting.batch_size == batch_size and run.history_steps
        for (examples, _), step in zip(run.history, run.history_steps, strict=True)
    }
    means = {
        LineKey(row["arm"], row["variant"]): [
            (grown.get(examples, examples // batch_size), loss)
            for examples, loss in zip(row["examples"], row["values"], strict=True)
        ]
        for row in study["learning"]["train_loss"]
        if row["batch_size"] == batch_size
    }
    return [
        RunCurves(key=key, style=styles[key], mean=means.get(key, []), runs=line_runs)
        for key, line_runs in lines.items()
        if line_runs
    ]


def _run_curve(run: Run, several_draws: bool) -> RunCurve:
    names = [f"seed {run.seed}", f"filter of {run.filter_network}" if several_draws else "", run.status]
    return RunCurve(
        name=", ".join(name for name in names if name not in ("", "finished")),
        points=[(round(run.steps_after(images)), loss) for images, loss in run.history if loss is not None],
        diverged=run.status == "diverged",
    )


def _batch_curves(
    styles: Mapping[LineKey, LineStyle], values: Iterable[tuple[LineKey, int, Mapping[str, Any]]], label: str = "{}"
) -> list[BatchCurve]:
    lines: dict[LineKey, list[tuple[int, Mapping[str, Any]]]] = {}
    for key, batch_size, estimate in values:
        lines.setdefault(key, []).append((batch_size, estimate))
    return [
        _batch_curve(key, styles[key], label.format(key), sorted(line, key=lambda point: point[0]))
        for key, line in lines.items()
    ]


def _batch_curve(
    key: LineKey, style: LineStyle, label: str, line: Sequence[tuple[int, Mapping[str, Any]]]
) -> BatchCurve:
    estimates = [estimate for _, estimate in line]
    return BatchCurve(
        key=key,
        style=style,
        label=label,
        batch_sizes=[batch_size for batch_size, _ in line],
        values=[estimate["mean"] for estimate in estimates],
        low=[estimate["low"] for estimate in estimates],
        high=[estimate["high"] for estimate in estimates],
        n=[estimate["n"] for estimate in estimates],
    )


def _percent(estimate: Mapping[str, Any]) -> dict[str, Any]:
    """Clip the t interval of accuracies near 0 or 100 %, which would stretch the axis."""
    ends = {key: estimate[key] and 100 * min(max(estimate[key], 0.0), 1.0) for key in ("low", "high")}
    return {**estimate, "mean": 100 * estimate["mean"], **ends}
