"""A study's plan: what is decided before its first run, as plain values with a hash."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pipeline.config.report import ReportConfig
from pipeline.config.study import Study, TrainConfig

_FROM_STUDY = (
    "models",
    "arms",
    "filter_network",
    "filter_draws",
    "batch_sizes",
    "learning_rates",
    "weight_decays",
    "seeds",
    "looks",
    "budget",
    "match",
)


def stated_plan(name: str, study: Study, train: TrainConfig, report: ReportConfig) -> dict[str, Any]:
    """Everything that a reader of the result wants to know was decided before.

    Keys that are null are left out, so that a key which a later version adds changes no plan where it is not used.

    Args:
        name: of the study.
        train: the section whose keys `study.recipe` changes.
        report: margin in percentage points of top-1, confidence, and the arm of the primary comparison.
    """
    values = study.model_dump(mode="json")
    compared = {"filtered", report.primary} <= set(study.arms)
    plan = {
        "study": name,
        **(values["plan"] or {}),
        **{key: values[key] for key in _FROM_STUDY},
        "primary_test": _primary_test(study, report) if compared else None,
        "stopping_rule": "first look that decides" if study.looks else "after all seeds",
        "recipe": study.effective_recipe(train).model_dump(mode="json"),
    }
    return {key: value for key, value in _without_nulls(plan).items() if value != {}}


def _primary_test(study: Study, report: ReportConfig) -> dict[str, Any]:
    """docs/statistics.md says how each test is made."""
    return {
        "arms": ["filtered", report.primary],
        "paired_by": "draw of the filter" if study.filter_draws > 1 else "seed",
        "difference": "t test" if study.looks else "t test and sign-flip test",
        "equivalence": "two one-sided t tests at the margin",
        "margin": report.margin,
        "confidence": report.confidence,
    }


def plan_hash(plan: Mapping[str, Any]) -> str:
    """SHA-256, in hex, of the plan as JSON: keys sorted, no spaces, UTF-8."""
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def changed_lines(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """`seeds [0, 1] -> [0, 1, 2]` for each key that differs, with the keys of sections as `recipe.schedule.name`."""
    old, new = _flat(before), _flat(after)
    keys = [*old, *(key for key in new if key not in old)]
    return [f"{key} {_shown(old, key)} -> {_shown(new, key)}" for key in keys if old.get(key) != new.get(key)]


def _shown(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "none"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _without_nulls(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }
