"""All that a study's runs say, as one tree of plain values: what the report and the app show of it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, get_args

from pipeline.stats.accuracies import arm_accuracies
from pipeline.stats.best_by_rate import best_by_rate
from pipeline.stats.comparison_values import pooled_values, setting_values
from pipeline.stats.comparisons import Plan, comparisons
from pipeline.stats.critical_batch import critical_batches
from pipeline.stats.learning import Quantity, learning_curves
from pipeline.stats.runs import EQUAL_EPOCHS, Run, Setting, describe, settings_of, varying_fields

StudySummary = dict[str, Any]


def study_summary(name: str, runs: Sequence[Run], plan: Plan) -> StudySummary:
    """The plan, verdicts over all settings and by setting, accuracies, what was left out, and mean learning curves.

    Shares and accuracies are 0 to 1, differences and the margin are percentage points of top-1.

    Args:
        runs: all cells of the study, whether they finished or not.
        plan: what was stated before them.
    """
    varying = varying_fields(settings_of(runs))
    statuses = Counter(run.status for run in runs)
    compared = comparisons(runs, plan)
    return {
        "name": name,
        "plan": {
            "margin": 100 * plan.margin,
            "alpha": plan.alpha,
            "primary": plan.primary,
            "matched": plan.matched,
        },
        "n_cells": len(runs),
        "n_skipped": statuses["skipped"],
        "n_diverged": statuses["diverged"],
        "varying": list(varying),
        "pooled": [pooled_values(comparison, plan) for comparison in compared],
        "differences": [
            row
            for comparison in compared
            for row in setting_values(comparison, lambda setting: _named(setting, varying))
        ],
        "accuracy": [
            {
                **_named(row.setting, varying, row.arm),
                **asdict(row),
                "setting": row.setting._asdict(),
            }
            for row in arm_accuracies(runs, plan.confidence, plan.n_images)
        ],
        "best_batch": [
            {
                **asdict(row),
                "variant": describe(row.setting, [name for name in varying if name != "learning_rate"]),
                "setting": row.setting._asdict(),
            }
            for row in best_by_rate(runs, plan.confidence)
        ],
        "critical_batch": [
            {**_named(row.setting, varying, row.arm), **asdict(row), "setting": row.setting._asdict()}
            for row in critical_batches(runs)
        ],
        "excluded": _excluded(runs),
        "epochs_apart": _epochs_apart(runs) if plan.matched == "epochs" else [],
        "learning": {quantity: learning_curves(runs, quantity, varying) for quantity in get_args(Quantity)},
    }


def _named(setting: Setting, varying: Iterable[str], arm: str | None = None) -> dict[str, str]:
    """`variant`, what beside arm and batch size tells a row from others, and a full `label`."""
    variant = describe(setting, varying)
    parts = [arm, f"batch {setting.batch_size}", variant]
    return {"variant": variant, "label": ", ".join(part for part in parts if part)}


def _epochs_apart(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The batch sizes at which whole steps leave arms at unlike epochs, and by what share the most exceed the least."""
    epochs: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        if run.finished and run.epochs is not None:
            epochs[run.setting.batch_size].append(run.epochs)
    apart = {size: max(found) / min(found) - 1 for size, found in sorted(epochs.items())}
    return [{"batch_size": size, "share": share} for size, share in apart.items() if share > EQUAL_EPOCHS]


def _excluded(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Cells without a result, seeds of one setting, arm and reason together."""
    groups: dict[tuple[Setting, str, str, str], list[int]] = defaultdict(list)
    for run in runs:
        if not run.finished:
            groups[run.setting, run.arm, run.status, run.reason].append(run.seed)
    return [
        {"setting": setting._asdict(), "arm": arm, "status": status, "reason": reason, "seeds": sorted(seeds)}
        for (setting, arm, status, reason), seeds in groups.items()
    ]
