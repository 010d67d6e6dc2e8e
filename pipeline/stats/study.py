"""Summaries of a study and of its loss landscapes, as plain values for the report and the visualizer."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np

from pipeline.stats.batch_size import best_by_rate, critical_batches, equivalent_batch_values
from pipeline.stats.comparisons import AnalysisPlan, comparisons, pooled_values, relabeled_comparison, setting_values
from pipeline.stats.ratios import ratios
from pipeline.stats.replicates import grid_settings
from pipeline.stats.runs import (
    EQUAL_EPOCHS,
    CurveAxis,
    Quantity,
    Run,
    Setting,
    arm_accuracies,
    describe,
    learning_curves,
    sorted_settings,
    varying_fields,
)

StudySummary = dict[str, Any]


def study_summary(
    name: str, runs: Sequence[Run], plan: AnalysisPlan, *, x_axis: CurveAxis = "examples"
) -> StudySummary:
    """Return the plan, verdicts over all settings and by setting, accuracies, excluded runs, and mean learning curves.

    Shares and accuracies are 0 to 1, differences and the margin are percentage points of top-1.

    Args:
        runs: all runs of the study, whether they finished or not.
        plan: stated before them.
        x_axis: of the learning curves.
    """
    varying, grid = varying_fields(sorted_settings(runs)), set(grid_settings(runs))
    statuses = Counter(run.status for run in runs)
    compared, relabeled = comparisons(runs, plan), relabeled_comparison(runs, plan)
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
        "relabeled": relabeled and pooled_values(relabeled, plan),
        "equivalent_batch": equivalent_batch_values(runs, plan),
        "differences": [
            row
            for comparison in compared
            for row in setting_values(comparison, lambda setting: _setting_names(setting, varying))
        ],
        "accuracy": [
            {
                **_setting_names(row.setting, varying, row.arm),
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
            for row in best_by_rate([run for run in runs if run.setting in grid], plan.confidence)
        ],
        "critical_batch": [
            {**_setting_names(row.setting, varying, row.arm), **asdict(row), "setting": row.setting._asdict()}
            for row in critical_batches(runs)
        ],
        "excluded": _excluded(runs),
        "epochs_apart": _epochs_apart(runs) if plan.matched == "epochs" else [],
        "x_axis": x_axis,
        "learning": {quantity: learning_curves(runs, quantity, varying, x_axis) for quantity in get_args(Quantity)},
    }


def _setting_names(setting: Setting, varying: Iterable[str], arm: str | None = None) -> dict[str, str]:
    """Return `variant`, which names what varies in addition to arm and batch size, and a full `label`."""
    variant = describe(setting, varying)
    parts = [arm, f"batch {setting.batch_size}", variant]
    return {"variant": variant, "label": ", ".join(part for part in parts if part)}


def _epochs_apart(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the batch sizes at which whole steps give arms unequal epochs, and the largest relative excess."""
    epochs: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        if run.finished and run.epochs is not None:
            epochs[run.setting.batch_size].append(run.epochs)
    apart = {size: max(values) / min(values) - 1 for size, values in sorted(epochs.items())}
    return [{"batch_size": size, "share": share} for size, share in apart.items() if share > EQUAL_EPOCHS]


def _excluded(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the runs without a result, grouped by setting, arm and reason."""
    groups: dict[tuple[Setting, str, str, str], list[int]] = defaultdict(list)
    for run in runs:
        if not run.finished:
            groups[run.setting, run.arm, run.status, run.reason].append(run.seed)
    return [
        {"setting": setting._asdict(), "arm": arm, "status": status, "reason": reason, "seeds": sorted(seeds)}
        for (setting, arm, status, reason), seeds in groups.items()
    ]


@dataclass(frozen=True, kw_only=True)
class LossGeometry:
    """The loss around one network's weights, on the same images for all networks.

    Attributes:
        loss: at the weights, in nats.
        eigenvalue: the largest of the loss's Hessian, in nats per squared unit of weight; None if its iteration
            did not converge.
        rise: mean of the loss on filter-normalized slices near the weights minus that at them, in nats.
    """

    loss: float
    eigenvalue: float | None
    rise: float


def landscape(runs: Sequence[Run], measured: Sequence[LossGeometry | None], alpha: float) -> dict[str, Any]:
    """Return each arm's means and the treated arm's ratios to each other one's, as plain values.

    Smaller eigenvalues and rises mean a smoother loss. Seeds without a measured network are left out. A setting in
    which another network is missing, or has a value that is not above 0, is not part of that value's ratio.

    Args:
        runs: of one study.
        measured: one for each of `runs`, None if missing.
        alpha: level of the tests, in (0, 1).
    """
    seeds = {run.seed for run, value in zip(runs, measured, strict=True) if value}
    pairs = [(run, value) for run, value in zip(runs, measured, strict=True) if run.seed in seeds]
    kept = [run for run, _ in pairs]
    values = {
        "eigenvalue": [_positive(value.eigenvalue) if value else None for _, value in pairs],
        "rise": [_positive(value.rise) if value else None for _, value in pairs],
    }
    return {
        "seeds": sorted(seeds),
        "arms": list(_arms(pairs)),
        "ratios": {
            name: [
                {**asdict(ratio), "settings": [setting._asdict() for setting in ratio.settings]}
                for ratio in ratios(kept, column, alpha)
            ]
            for name, column in values.items()
        },
    }


def _positive(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None


def _arms(pairs: Sequence[tuple[Run, LossGeometry | None]]) -> Iterator[dict[str, Any]]:
    """Yield the means over the networks of each measured setting and arm; None if a network has no value."""
    for setting in sorted_settings([run for run, _ in pairs]):
        for arm in dict.fromkeys(run.arm for run, _ in pairs):
            group = [value for run, value in pairs if value and run.setting == setting and run.arm == arm]
            if group:
                eigenvalues = [value.eigenvalue for value in group if value.eigenvalue is not None]
                yield {
                    "setting": setting._asdict(),
                    "arm": arm,
                    "n": len(group),
                    "loss": float(np.mean([value.loss for value in group])),
                    "eigenvalue": float(np.mean(eigenvalues)) if len(eigenvalues) == len(group) else None,
                    "rise": float(np.mean([value.rise for value in group])),
                }
