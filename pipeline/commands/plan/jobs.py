"""Training runs to measure for a plan, and the cost of each stage or of all from the measured speeds."""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from pipeline.commands.plan import cost
from pipeline.commands.plan.cost import PlannedCost, total_cost
from pipeline.commands.plan.size import (
    DataSize,
    StudyPlan,
    plan_from_sizes,
    planned_device,
    stage_graph,
    thread_count,
    worker_count,
)
from pipeline.commands.plan.speed import Speed, Workload, measure
from pipeline.config.extractors import base_architecture, replicate_number
from pipeline.config.params import Params
from pipeline.config.study import KeepWeights
from pipeline.distributed import local_gpus
from pipeline.models import full_name
from pipeline.training.effective_settings import effective_settings
from pipeline.training.settings import DatasetInfo, GridPoint, TrainSettings

_MEASURE_BUDGET_S = 18.0

# A few passes of each network; `plan` takes longer and is more exact.
_QUICK_BUDGET_S = 2.0


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One training run on `workers` processes of `threads` CPU threads each."""

    settings: TrainSettings
    workers: int
    threads: int

    @property
    def workload(self) -> Workload:
        return Workload(
            network=self.settings.network,
            stem=self.settings.stem,
            crop_size=self.settings.format.crop_size,
            n_classes=self.settings.n_classes,
            threads=self.threads,
            tf32=self.settings.precision == "tf32",
            fast=self.settings.fast,
        )


def finetune_run(params: Params, network: str, size: DataSize) -> PlannedRun:
    """Return the run of an extractor, or of each of its folds."""
    config = params.finetune
    settings = effective_settings(
        config,
        DatasetInfo(
            n_classes=size.n_classes,
            image_size=params.prepare.image_size,
            mean=(0.5,) * 3,
            std=(0.25,) * 3,
        ),
        GridPoint(
            network=full_name(base_architecture(network)),
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            weight_decay=config.weight_decay,
            seed=config.seed + replicate_number(network),
        ),
        n_epoch=cost.images_per_fold(size.n_train, config.folds),
        budget=config.budget,
        skipped=config.trainable == "head",
    )
    return PlannedRun(settings=settings, workers=worker_count(config), threads=thread_count(config))


def planned_runs(params: Params, name: str, plan: StudyPlan) -> list[PlannedRun]:
    """Return the missing runs of a study."""
    recipe = params.studies[name].effective_recipe(params.train)
    workers, threads = worker_count(recipe), thread_count(recipe)
    return [PlannedRun(settings=run.settings, workers=workers, threads=threads) for run in plan.missing]


def measure_all(runs: Iterable[PlannedRun], *, budget_s: float = _MEASURE_BUDGET_S) -> dict[Workload, Speed]:
    """Measure a speed for each kind of run, all within about half a minute.

    Args:
        budget_s: seconds after which each kind gets one size of micro-batch alone.
    """
    sizes: dict[Workload, set[int]] = {}
    workers: dict[Workload, int] = {}
    for run in runs:
        sizes.setdefault(run.workload, set()).update(*cost.micro_batch_sizes(run.settings, run.workers).values())
        workers[run.workload] = run.workers
    threads = torch.get_num_threads()
    deadline = time.monotonic() + budget_s
    speeds: dict[Workload, Speed] = {}
    try:
        for n_left, workload in zip(range(len(sizes), 0, -1), sizes, strict=True):
            share = max(0.0, deadline - time.monotonic()) / n_left
            speeds[workload] = measure(workload, sizes[workload], planned_device(workers[workload]), seconds=share)
    finally:
        torch.set_num_threads(threads)
    return speeds


def stage_costs(
    params: Params,
    running: frozenset[str],
    size: DataSize,
    runs: Mapping[str, list[PlannedRun]],
    speeds: Mapping[Workload, Speed],
) -> dict[str, PlannedCost]:
    """Return stage -> cost, for the stages of `running`.

    Args:
        running: stages that would run.
        runs: of the stages finetune@..., one each, also if only extract@... runs, and train@....
    """
    cores = len(os.sched_getaffinity(0))
    costs: dict[str, PlannedCost] = {}
    for stage in running:
        kind, _, item = stage.partition("@")
        match kind:
            case "prepare":
                costs[stage] = cost.prepare_cost(params.prepare, size)
            case "finetune":
                (run,) = runs[stage]
                cost_fn = cost.finetune_cost if params.finetune.trainable == "all" else cost.head_cost
                costs[stage] = cost_fn(
                    run.settings, speeds[run.workload], size, folds=params.finetune.folds, workers=run.workers
                )
            case "extract":
                (run,) = runs[f"finetune@{item}"]
                costs[stage] = cost.extract_cost(
                    run.settings,
                    params.extract,
                    speeds[run.workload],
                    size,
                    folds=params.finetune.folds,
                    workers=local_gpus(),
                )
            case "reduce":
                costs[stage] = cost.reduce_cost(params.reduce, base_architecture(item), size, cores=cores)
            case "filter":
                costs[stage] = cost.filter_cost(size)
            case "train":
                costs[stage] = _study_cost(runs[stage], params.studies[item].keep_weights, speeds, size)
            case "report":
                costs[stage] = cost.report_cost(len(params.networks), len(params.studies), size.n_train)
    return costs


def _study_cost(
    runs: list[PlannedRun], keep: KeepWeights, speeds: Mapping[Workload, Speed], size: DataSize
) -> PlannedCost:
    first_seed = runs[0].settings.seed if runs else 0
    costs = []
    for run in runs:
        speed = speeds[run.workload]
        is_kept = keep == "all" or (keep == "first_seed" and run.settings.seed == first_seed)
        costs.append(
            PlannedCost(
                seconds=cost.run_seconds(run.settings, speed, size, workers=run.workers),
                memory=cost.run_memory(run.settings, speed, size, workers=run.workers),
                disk=(speed.weight_bytes if is_kept else 0) + size.n_test + 20_000.0,
            )
        )
    weights = max((speeds[run.workload].weight_bytes for run in runs), default=0) if keep != "none" else 0
    return cost.study_cost(costs, weights=weights, n_test=size.n_test)


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """Wall seconds until the suspects are listed, and of the whole pipeline."""

    suspects_s: float
    total_s: float


def estimate_pipeline(params: Params, *, n_train: int, n_test: int, n_classes: int) -> TimeEstimate:
    """Return the estimate for a data set of that size; measures the networks' speed for some seconds."""
    size = DataSize(n_train=n_train, n_test=n_test, n_classes=n_classes, source="counted")
    graph = stage_graph(params)
    kept = dict.fromkeys(params.networks, n_train)
    runs = {}
    for name in params.studies:
        runs[f"train@{name}"] = planned_runs(params, name, plan_from_sizes(params, name, size, kept))
    for network in params.networks:
        runs[f"finetune@{network}"] = [finetune_run(params, network, size)]
    speeds = measure_all((run for of_stage in runs.values() for run in of_stage), budget_s=_QUICK_BUDGET_S)
    costs = stage_costs(params, frozenset(graph), size, runs, speeds)
    suspects = [one for stage, one in costs.items() if not stage.startswith(("train", "report"))]
    return TimeEstimate(suspects_s=total_cost(suspects).seconds, total_s=total_cost(list(costs.values())).seconds)
