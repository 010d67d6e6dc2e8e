"""The plan of a study: its decisions before the first run, their hash, and what changed since."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pipeline.config.batch_sizes import TEST_ARMS
from pipeline.config.renamed_keys import with_old_keys
from pipeline.config.runtime import ReportConfig
from pipeline.config.study import Study, TrainConfig

_FROM_STUDY = (
    "models", "arms", "relabel_above", "filter_network", "filter_draws", "batch_sizes", "learning_rates",
    "weight_decays", "seeds", "looks", "budget", "budget_by_batch_size", "equal_across", "match",
)  # fmt: skip


def build_plan(name: str, study: Study, train: TrainConfig, report: ReportConfig) -> dict[str, Any]:
    """Return the plan of a study, its decisions before the first run, as plain values.

    Keys that are null are omitted, so that a key of a later version changes no plan that does not use it.

    Args:
        name: of the study.
        train: the section that `study.recipe` updates.
        report: margin in percentage points of top-1, confidence, and the arm of the primary comparison.
    """
    # Hashes of registered plans contain the old names of renamed keys.
    values = with_old_keys({"studies": {name: study.model_dump(mode="json")}})["studies"][name]
    compared = {"filtered", report.primary} <= set(study.arms)
    plan = {
        "study": name,
        **(values["plan"] or {}),
        **{key: values[key] for key in _FROM_STUDY},
        "primary_test": _primary_test(study, report) if compared else None,
        "equivalent_batch_test": _equivalent_batch_test(study, train, report),
        "stopping_rule": "first look that decides" if study.looks else "after all seeds",
        "recipe": study.effective_recipe(train).model_dump(mode="json"),
    }
    return {key: value for key, value in _without_nulls(plan).items() if value != {}}


def _primary_test(study: Study, report: ReportConfig) -> dict[str, Any]:
    """Return the primary test, which docs/statistics.md describes."""
    return {
        "arms": ["filtered", report.primary],
        "paired_by": "draw of the filter" if study.filter_replicates > 1 else "seed",
        "difference": "t test" if study.looks else "t test and sign-flip test",
        "equivalence": "two one-sided t tests at the margin",
        "margin": report.margin,
        "confidence": report.confidence,
    }


def _equivalent_batch_test(study: Study, train: TrainConfig, report: ReportConfig) -> dict[str, Any] | None:
    """Return the test of the effective batch with the batch sizes of both arms; None without one."""
    if study.equivalent_batch is None:
        return None
    return {
        **study.equivalent_batch.model_dump(mode="json"),
        **_primary_test(study, report),
        "arms": list(TEST_ARMS),
        "sizes": {str(size): smaller for size, smaller in study.equivalent_sizes(train).items()},
        "equal": "steps",
    }


def plan_hash(plan: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hex, of the plan as JSON: sorted keys, no spaces, UTF-8."""
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def diff_plans(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return `seeds [0, 1] -> [0, 1, 2]` for each key that differs; keys of sections read `recipe.schedule.name`."""
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
