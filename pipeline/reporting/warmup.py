"""Find studies that differ only in their warm-up, and report how the best warm-up grows with the batch size."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from pipeline.config.study import PASSIVE_RECIPE_KEYS, PASSIVE_STUDY_KEYS, Study, TrainConfig
from pipeline.reporting.inputs import StudyInputs
from pipeline.stats.batch_size import warmup_law
from pipeline.stats.estimates import Estimate
from pipeline.stats.formatting import MISSING, count, number, plural
from pipeline.stats.runs import Run
from pipeline.stats.tables import Table, make_table


def warmup_laws(studies: Sequence[StudyInputs], train: TrainConfig, confidence: float) -> list[dict[str, Any]]:
    """Return the best warm-up of each batch size, for each set of sibling studies and each of their arms and variants.

    Siblings share everything except `schedule.warmup`, in epochs, the batch sizes, and keys that change no run. The
    batch sizes of studies with the same warm-up are combined. A batch size counts if every warm-up has runs of it, and
    each seed has a finished one. The seeds are those that all of these runs have, since siblings with looks may stop at
    different numbers. Studies with several replicates of the filter have no single run per seed and are left out.

    Returns:
        studies, model, arm, learning_rate, weight_decay, warmups (epochs), and `best` and `slope` of `WarmupLaw`.
    """
    siblings: dict[str, dict[float, list[StudyInputs]]] = defaultdict(lambda: defaultdict(list))
    for study in studies:
        warmup = _warmup_epochs(study.study, train)
        if warmup is not None and study.study.filter_replicates == 1:
            siblings[_all_but_the_warmup(study.study, train)][warmup].append(study)
    groups = [dict(sorted(group.items())) for group in siblings.values() if len(group) > 1]
    return [law for group in groups for law in _laws(group, confidence)]


def _warmup_epochs(study: Study, train: TrainConfig) -> float | None:
    warmup = getattr(study.effective_recipe(train).schedule, "warmup", None)
    return warmup.epochs if warmup else None


def _all_but_the_warmup(study: Study, train: TrainConfig) -> str:
    grid = study.model_dump(mode="json", exclude={"recipe", "batch_sizes", *PASSIVE_STUDY_KEYS})
    recipe = study.effective_recipe(train).model_dump(mode="json", exclude=set(PASSIVE_RECIPE_KEYS))
    recipe["schedule"].pop("warmup")
    return json.dumps([grid, recipe], sort_keys=True)


def _laws(group: dict[float, list[StudyInputs]], confidence: float) -> list[dict[str, Any]]:
    """Return the laws of one set of siblings, given as warm-up in epochs -> its studies, ascending."""
    by_warmup = {
        warmup: _runs_by_variant([run for study in studies for run in study.runs]) for warmup, studies in group.items()
    }
    laws = []
    for variant in next(iter(by_warmup.values())):
        tried = [runs[variant] for runs in by_warmup.values()]
        sizes = sorted(set.intersection(*({size for size, _ in runs} for runs in tried)))
        of_sizes = [{seed for at, seed in runs if at == size} for runs in tried for size in sizes]
        seeds = sorted(of_sizes[0].intersection(*of_sizes)) if of_sizes else []
        tables = {size: np.array([[runs[size, seed] for seed in seeds] for runs in tried]) for size in sizes}
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
    """Return model, learning rate, weight decay and arm -> batch size and seed -> top-1, NaN for unfinished runs."""
    variants: dict[_Variant, dict[tuple[int, int], float]] = defaultdict(dict)
    for run in runs:
        setting = run.setting
        variant = (setting.model, setting.learning_rate, setting.weight_decay, run.arm)
        variants[variant][setting.batch_size, run.seed] = run.top1 if run.top1 is not None else float("nan")
    return variants


def warmup_table(laws: Sequence[Mapping[str, Any]], confidence: float) -> Table:
    """Build the table of the best warm-up of each batch size, from `warmup_laws`."""
    rows = [
        (
            ", ".join(law["studies"]),
            law["model"],
            law["arm"],
            number(law["learning_rate"]),
            number(law["weight_decay"]),
            count(best["batch_size"]),
            number(best["of_means"]) + (", the longest tried" if best["at_end"] else ""),
            number(best["by_seed"]["mean"]),
            number_interval(Estimate(**best["by_seed"])),
            count(best["by_seed"]["n"]),
        )
        for law in laws
        for best in law["best"]
    ]
    return make_table(
        "studies; model; arm; learning rate; weight decay; batch size; best warm-up by mean top-1 (epochs); "
        f"mean of the seeds' best (epochs); {100 * confidence:g} % interval (epochs); n (seeds)",
        rows,
        text="studies; model; arm",
    )


def slope_sentence(law: Mapping[str, Any], confidence: float) -> str:
    """Return the growth of the best warm-up with the batch as a sentence, or why it is unknown."""
    what = f"{law['model']}, arm {law['arm']}, learning rate {law['learning_rate']:g}"
    what += f", weight decay {law['weight_decay']:g}: "
    if len(law["best"]) < 2:
        return f"{what}a single batch size shows no growth."
    grows = Estimate(**law["per_doubling"])
    text = f"{what}as the batch doubles the best warm-up grows by {number(grows.mean)} epochs"
    text += f" ({_certainty(grows, confidence)})"
    if law["slope"] is None:
        text += "; no power of the batch size can be fitted, since for some seed a warm-up of 0 is best."
    else:
        power = Estimate(**law["slope"])
        text += f", as the batch size to the power of {power.mean:.2f} ({_certainty(power, confidence)})."
    return f"{text}{_end_note(law)}"


def _certainty(slope: Estimate, confidence: float) -> str:
    if slope.low is None:
        return f"all {slope.n} seeds agree on the warm-ups tried, hence no interval" if slope.n > 1 else "n = 1 seed"
    return f"{100 * confidence:g} % interval {number_interval(slope)}, n = {plural(slope.n, 'seed')}"


def _end_note(law: Mapping[str, Any]) -> str:
    """Return that a longer warm-up than those tried may be better; the power then depends on the end of the grid."""
    sizes = [count(best["batch_size"]) for best in law["best"] if best["seeds_at_end"]]
    if not sizes:
        return ""
    end = "the best of some seed is the longest warm-up tried; a longer one may be better."
    *others, last = sizes
    named = f"batch sizes {', '.join(others)} and {last}" if others else f"batch size {last}"
    return f" At {named} {end}"


def number_interval(estimate: Estimate, fmt: Callable[[float | None], str] = number) -> str:
    """Format an interval: `1.2 to 3.4`, or why there is none; `fmt` formats one end."""
    if estimate.low is not None:
        return f"{fmt(estimate.low)} to {fmt(estimate.high)}"
    return "all seeds agree" if estimate.n > 1 else MISSING
