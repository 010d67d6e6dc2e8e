"""Studies that differ in the length of their warm-up alone, and what they say of the best one."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pipeline.config.study import Study, TrainConfig
from pipeline.reporting.inputs import StudyInputs
from pipeline.stats.runs import Run
from pipeline.stats.warmup_law import warmup_law


def warmup_laws(studies: Sequence[StudyInputs], train: TrainConfig, confidence: float) -> list[dict[str, Any]]:
    """For each set of sibling studies, and each of their arms and variants, the best warm-up of each batch size.

    Siblings share everything but `schedule.warmup`, in epochs, and the batch sizes, of which those count that all
    warm-ups have with a finished run of every seed; studies of one warm-up have their batch sizes together. Arms that
    the filter draws several times have no single run of a seed and are left out.

    Returns:
        studies, model, arm, learning_rate, weight_decay, warmups (epochs), and `best` and `slope` of `WarmupLaw`.
    """
    siblings: dict[str, dict[float, list[StudyInputs]]] = defaultdict(lambda: defaultdict(list))
    for study in studies:
        warmup = _warmup_epochs(study.study, train)
        if warmup is not None and study.study.filter_draws == 1:
            siblings[_all_but_the_warmup(study.study, train)][warmup].append(study)
    groups = [dict(sorted(group.items())) for group in siblings.values() if len(group) > 1]
    return [law for group in groups for law in _laws(group, confidence)]


def _warmup_epochs(study: Study, train: TrainConfig) -> float | None:
    warmup = getattr(study.effective_recipe(train).schedule, "warmup", None)
    return warmup.epochs if warmup else None


def _all_but_the_warmup(study: Study, train: TrainConfig) -> str:
    grid = study.model_dump(mode="json", exclude={"recipe", "figure", "batch_sizes"})
    recipe = study.effective_recipe(train).model_dump(mode="json")
    recipe["schedule"].pop("warmup")
    return json.dumps([grid, recipe], sort_keys=True)


def _laws(group: dict[float, list[StudyInputs]], confidence: float) -> list[dict[str, Any]]:
    """Of one set of siblings: warm-up in epochs -> its studies, ascending."""
    by_warmup = {
        warmup: _runs_by_variant([run for study in studies for run in study.runs]) for warmup, studies in group.items()
    }
    laws = []
    for variant in next(iter(by_warmup.values())):
        found = [runs[variant] for runs in by_warmup.values()]
        seeds = sorted({seed for _, seed in found[0]})
        sizes = sorted(set.intersection(*({size for size, _ in runs} for runs in found)))
        tables = {size: np.array([[runs[size, seed] for seed in seeds] for runs in found]) for size in sizes}
        usable = [size for size in sizes if np.isfinite(tables[size]).any(axis=0).all()]
        if not usable:
            continue
        top1 = np.stack([tables[size] for size in usable], axis=1)
        law = warmup_law(top1, list(by_warmup), usable, confidence)
        model, learning_rate, weight_decay, arm = variant
        laws.append(
            {
                "studies": [study.name for studies in group.values() for study in studies],
                "model": model,
                "arm": arm,
                "learning_rate": learning_rate,
                "weight_decay": weight_decay,
                "warmups": list(by_warmup),
                **asdict(law),
            }
        )
    return laws


_Variant = tuple[str, float, float, str]


def _runs_by_variant(runs: Sequence[Run]) -> dict[_Variant, dict[tuple[int, int], float]]:
    """Model, learning rate, weight decay and arm -> batch size and seed -> top-1, NaN where the run did not finish."""
    found: dict[_Variant, dict[tuple[int, int], float]] = defaultdict(dict)
    for run in runs:
        setting = run.setting
        variant = (setting.model, setting.learning_rate, setting.weight_decay, run.arm)
        found[variant][setting.batch_size, run.seed] = run.top1 if run.top1 is not None else float("nan")
    return found
