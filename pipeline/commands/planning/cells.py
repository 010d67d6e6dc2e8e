"""Which cells of a study are still to be trained."""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pipeline.artifacts.prepared import load_prepared
from pipeline.commands.planning.data import DataSize
from pipeline.config.params import Params
from pipeline.config.recipe import Recipe
from pipeline.distributed import Ranks, choose_workers, threads_for
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import RunLog
from pipeline.stages.harness import StageContext
from pipeline.stages.train import keys_of, missing_cells, next_cells, resolve_cells
from pipeline.training.ledger import Ledger
from pipeline.training.study import Cell, DataSummary, cells_of
from pipeline.training.workers import plan_of


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The cells of a study: all of them, how many cannot run and why, and which are to be trained.

    Attributes:
        skipped: reason -> cells.
        shared: cells that are missing too, and are trained with an earlier study.
        threads: CPU threads of each process that trains, which are part of a run's key; None on a GPU.
    """

    total: int
    skipped: dict[str, int]
    missing: list[Cell]
    shared: int = 0
    threads: int | None = None


def plan_from_ledger(params: Params, name: str, data: DataPaths, work: WorkPaths) -> StudyPlan:
    """What the train stage would do now, with its inputs as they are on disk.

    Of a study with looks that is not decided yet all that it may take.
    """
    context = StageContext(stage="train", item=name, params=params, data=data, work=work, log=RunLog.silent())
    recipe = params.studies[name].effective_recipe(params.train)
    workers = workers_of(recipe)
    ranks = Ranks(rank=0, count=workers, device=device_of(workers))
    prepared = load_prepared(data, folder=context.image_folder)
    cells, _, identities = resolve_cells(context, prepared, ranks, threads=threads_of(recipe))
    keys, ledger = keys_of(identities), Ledger(work.cells)
    complete = not next_cells(context, cells, keys, ledger, len(prepared.test.labels))
    todo = [] if complete else missing_cells(cells, keys, ledger, params.studies[name].keep_weights)
    return StudyPlan(
        total=len(cells), skipped=_skipped(cells), missing=[cells[i] for i in todo], threads=_deciding_threads(recipe)
    )


def plan_from_sizes(params: Params, name: str, size: DataSize, n_kept: Mapping[str, int]) -> StudyPlan:
    """Every cell that can run, for data that are not there yet; `n_kept` images are left by each network's filter."""
    summary = DataSummary(
        n_classes=size.n_classes, image_size=params.prepare.image_size, mean=(0.5,) * 3, std=(0.25,) * 3
    )
    study = params.studies[name]
    cells = cells_of(study, params.train, summary, size.n_train, n_kept)
    return StudyPlan(
        total=len(cells),
        skipped=_skipped(cells),
        missing=[cell for cell in cells if not cell.skipped],
        threads=_deciding_threads(study.effective_recipe(params.train)),
    )


def counted_once(plans: Mapping[str, StudyPlan]) -> dict[str, StudyPlan]:
    """The plans of studies that run one after the other, by name: a cell that several have is trained by the first."""
    seen: set[str] = set()
    once = {}
    for name, plan in plans.items():
        runs = [_run_of(cell, plan.threads) for cell in plan.missing]
        own = [cell for cell, run in zip(plan.missing, runs, strict=True) if run not in seen]
        once[name] = dataclasses.replace(plan, missing=own, shared=len(runs) - len(own))
        seen.update(runs)
    return once


def _run_of(cell: Cell, threads: int | None) -> str:
    """What tells a cell's run from all others of the same data."""
    images = [cell.arm] if cell.arm == "full" else [cell.arm, cell.filter_network]
    return json.dumps([images, dataclasses.asdict(cell.settings), threads], sort_keys=True)


def workers_of(recipe: Recipe) -> int:
    """Processes that this machine would train `recipe` on."""
    plan = plan_of(recipe)
    return choose_workers(plan.workers, plan.fitting)


def threads_of(recipe: Recipe) -> int:
    """CPU threads of each process that trains by `recipe`."""
    return threads_for(plan_of(recipe).threads, workers_of(recipe))


def _deciding_threads(recipe: Recipe) -> int | None:
    return threads_of(recipe) if device_of(workers_of(recipe)).type == "cpu" else None


def device_of(workers: int) -> torch.device:
    """Where `workers` processes compute: GPUs if there is one for each."""
    return torch.device("cuda" if torch.cuda.device_count() >= workers else "cpu")


def _skipped(cells: list[Cell]) -> dict[str, int]:
    return dict(Counter(cell.skipped for cell in cells if cell.skipped))
