"""All that a study's runs say, as one tree of plain values: what the report and the app show of it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pipeline.stats.accuracies import arm_accuracies
from pipeline.stats.comparison_values import pooled_values, setting_values
from pipeline.stats.comparisons import Plan, comparisons
from pipeline.stats.critical_batch import critical_batches
from pipeline.stats.runs import Run, Setting, describe, settings_of, varying_fields

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
            for row in arm_accuracies(runs, plan.confidence)
        ],
        "critical_batch": [
            {**_named(row.setting, varying, row.arm), **asdict(row), "setting": row.setting._asdict()}
            for row in critical_batches(runs)
        ],
        "excluded": _excluded(runs),
        "learning": _learning(runs, varying),
    }


def _named(setting: Setting, varying: Iterable[str], arm: str | None = None) -> dict[str, str]:
    """`variant`, what beside arm and batch size tells a row from others, and a full `label`."""
    variant = describe(setting, varying)
    parts = [arm, f"batch {setting.batch_size}", variant]
    return {"variant": variant, "label": ", ".join(part for part in parts if part)}


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


def _learning(runs: Sequence[Run], varying: Iterable[str]) -> list[dict[str, Any]]:
    """Mean training loss of the finished seeds of each setting and arm, where all of them recorded it."""
    groups: dict[tuple[Setting, str], list[dict[int, float]]] = defaultdict(list)
    for run in runs:
        if run.finished:
            groups[run.setting, run.arm].append({examples: loss for examples, loss in run.history if loss is not None})
    curves = []
    for (setting, arm), histories in sorted(groups.items()):
        shared = sorted(set.intersection(*(set(history) for history in histories)))
        curves.append(
            {
                "variant": describe(setting, varying),
                "batch_size": setting.batch_size,
                "arm": arm,
                "n": len(histories),
                "examples": shared,
                "train_loss": [float(np.mean([history[at] for history in histories])) for at in shared],
            }
        )
    return curves
