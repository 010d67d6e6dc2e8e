"""Size of a plan: images without downloading or decoding them, runs still to train, and stages to run."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.artifacts.files import read_json
from pipeline.artifacts.prepared import load_prepared
from pipeline.config.params import Params
from pipeline.config.prepare import PrepareConfig
from pipeline.config.recipe import Recipe
from pipeline.datasets.decode import UnreadableError, decode_image
from pipeline.datasets.image_set import DatasetOptions, ImageSet, ProgressCounter
from pipeline.datasets.registry import DATASETS
from pipeline.datasets.splits import subsample
from pipeline.distributed import World, choose_workers, threads_per_process
from pipeline.filtering.apply import share_for
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import RunLog
from pipeline.stages.harness import StageContext
from pipeline.stages.train import missing_runs, next_runs, resolve_runs, run_key_digests
from pipeline.training.grid import RunSpec, expand_grid
from pipeline.training.result_cache import RunCache
from pipeline.training.settings import DatasetInfo, launch_plan

_TIMED_IMAGES = 24
# Krizhevsky (2009): training images, test images, classes.
_PUBLISHED = {"cifar10": (50_000, 10_000, 10), "cifar100": (50_000, 10_000, 100)}


@dataclass(frozen=True, kw_only=True)
class DataSize:
    """Images and classes.

    Attributes:
        source: how they are known, in a word or two.
        decode_s: seconds that all cores together take to read and decode an image, where images
            stay in their files; 0 otherwise.
    """

    n_train: int
    n_test: int
    n_classes: int
    source: str
    decode_s: float = 0.0


def data_size(config: PrepareConfig, paths: DataPaths, *, prepared: bool) -> DataSize:
    """The size of the data set that `config` describes.

    Args:
        prepared: whether data/prepare is of `config`; then it is read, unless files are to be timed.

    Raises:
        InputError: a folder or archive that cannot be a data set.
    """
    if prepared and config.storage == "array":
        data = load_prepared(paths, folder=config.folder)
        n_train, n_test, n_classes = len(data.train.labels), len(data.test.labels), len(data.class_names)
        return DataSize(n_train=n_train, n_test=n_test, n_classes=n_classes, source="prepared")
    if config.dataset in _PUBLISHED:
        n_train, n_test, n_classes = _PUBLISHED[config.dataset]
        n_train = round((config.train_size or 1) * n_train)
        return DataSize(n_train=n_train, n_test=n_test, n_classes=n_classes, source="published")
    images = DATASETS[config.dataset](
        DatasetOptions(
            path=config.folder,
            image_size=config.image_size,
            test_size=config.test_size,
            max_megapixels=config.max_megapixels,
            seed=config.seed,
            downloads=Path(),
            progress=lambda *_: nullcontext(_SilentCounter()),
        )
    )
    if config.train_size is not None:
        images, _ = subsample(images, config.train_size, seed=config.seed)
    return DataSize(
        n_train=len(images.train),
        n_test=len(images.test),
        n_classes=len(images.class_names),
        source="counted",
        decode_s=_decode_seconds(config, images),
    )


def _decode_seconds(config: PrepareConfig, images: ImageSet) -> float:
    """Of a few training images from all over the folder."""
    if config.storage == "array" or images.files_in is None:
        return 0.0
    assert config.folder is not None
    chosen = images.train[:: -(-len(images.train) // _TIMED_IMAGES)]
    paths = [config.folder / images.files_in / sample.path for sample in chosen]
    start = time.perf_counter()
    for path in paths:
        with contextlib.suppress(UnreadableError, OSError):  # `prepare` will say so
            decode_image(path.read_bytes(), config.image_size, max_megapixels=config.max_megapixels)
    return (time.perf_counter() - start) / len(paths) / len(os.sched_getaffinity(0))


def n_kept_images(params: Params, network: str, n_train: int, paths: DataPaths, *, filtered: bool) -> int:
    """Training images that the filter of `network` keeps; all where only the run can tell.

    Args:
        filtered: whether data/filter is of `params`; then it is read.
    """
    if filtered:
        return int(read_json(paths.filter_metrics(network))["n_kept"])
    return n_train - round((share_for(params.filter, network) or 0.0) * n_train)


class _SilentCounter(ProgressCounter):
    def update(self, n: int = 1) -> None:
        pass


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
    missing: list[RunSpec]
    shared: int = 0
    threads: int | None = None


def plan_from_ledger(params: Params, name: str, data: DataPaths, work: WorkPaths) -> StudyPlan:
    """What the train stage would do now, with its inputs as they are on disk.

    Of a study with looks that is not decided yet all that it may take.
    """
    context = StageContext(stage="train", item=name, params=params, data=data, work=work, log=RunLog.silent())
    recipe = params.studies[name].effective_recipe(params.train)
    workers = worker_count(recipe)
    ranks = World(rank=0, size=workers, device=planned_device(workers))
    prepared = load_prepared(data, folder=context.image_folder)
    cells, _, identities = resolve_runs(context, prepared, ranks, threads=thread_count(recipe))
    keys, ledger = run_key_digests(identities), RunCache(work.run_cache)
    complete = not next_runs(context, cells, keys, ledger, len(prepared.test.labels))
    todo = [] if complete else missing_runs(cells, keys, ledger, params.studies[name].keep_weights)
    return StudyPlan(
        total=len(cells), skipped=_skipped(cells), missing=[cells[i] for i in todo], threads=_deciding_threads(recipe)
    )


def plan_from_sizes(params: Params, name: str, size: DataSize, n_kept: Mapping[str, int]) -> StudyPlan:
    """Every cell that can run, for data that are not there yet; `n_kept` images are left by each network's filter."""
    summary = DatasetInfo(
        n_classes=size.n_classes, image_size=params.prepare.image_size, mean=(0.5,) * 3, std=(0.25,) * 3
    )
    study = params.studies[name]
    cells = expand_grid(study, params.train, summary, size.n_train, n_kept)
    return StudyPlan(
        total=len(cells),
        skipped=_skipped(cells),
        missing=[cell for cell in cells if not cell.skip_reason],
        threads=_deciding_threads(study.effective_recipe(params.train)),
    )


def deduplicate_runs(plans: Mapping[str, StudyPlan]) -> dict[str, StudyPlan]:
    """The plans of studies that run one after the other, by name: a cell that several have is trained by the first."""
    seen: set[str] = set()
    once = {}
    for name, plan in plans.items():
        runs = [_run_identity(cell, plan.threads) for cell in plan.missing]
        own = [cell for cell, run in zip(plan.missing, runs, strict=True) if run not in seen]
        once[name] = dataclasses.replace(plan, missing=own, shared=len(runs) - len(own))
        seen.update(runs)
    return once


def _run_identity(cell: RunSpec, threads: int | None) -> str:
    """What tells a cell's run from all others of the same data."""
    images = [cell.arm] if cell.arm == "full" else [cell.arm, cell.filter_network]
    return json.dumps([images, dataclasses.asdict(cell.settings), threads], sort_keys=True)


def worker_count(recipe: Recipe) -> int:
    """Processes that this machine would train `recipe` on."""
    plan = launch_plan(recipe)
    return choose_workers(plan.workers, plan.valid_world_sizes)


def thread_count(recipe: Recipe) -> int:
    """CPU threads of each process that trains by `recipe`."""
    return threads_per_process(launch_plan(recipe).threads, worker_count(recipe))


def _deciding_threads(recipe: Recipe) -> int | None:
    return thread_count(recipe) if planned_device(worker_count(recipe)).type == "cpu" else None


def planned_device(workers: int) -> torch.device:
    """Where `workers` processes compute: GPUs if there is one for each."""
    return torch.device("cuda" if torch.cuda.device_count() >= workers else "cpu")


def _skipped(cells: list[RunSpec]) -> dict[str, int]:
    return dict(Counter(cell.skip_reason for cell in cells if cell.skip_reason))


Graph = Mapping[str, tuple[str, ...]]
"""Stage, as DVC calls it -> the stages whose outputs it reads; in an order in which they can run."""


def stage_graph(params: Params) -> Graph:
    """The graph that dvc.yaml makes of the networks and studies of `params`."""
    graph: dict[str, tuple[str, ...]] = {"prepare": ()}
    chain = ("finetune", "extract", "reduce", "filter")
    for stage, before in zip(chain, ("prepare", *chain), strict=False):
        for network in params.networks:
            graph[f"{stage}@{network}"] = (before if before == "prepare" else f"{before}@{network}",)
    for name, study in params.studies.items():
        graph[f"train@{name}"] = _stages_before(study.needs or study.possible_needs[0], params.networks)
    graph["report"] = tuple(stage for stage in graph if stage.startswith(("filter", "train")))
    return graph


def _stages_before(needs: str, networks: Sequence[str]) -> tuple[str, ...]:
    """Of a study, by its key `needs`."""
    stage, _, network = needs.partition("/")
    if stage == "prepare":
        return ("prepare",)
    return (f"{stage}@{network}",) if network else tuple(f"{stage}@{name}" for name in networks)


def changed_stages(project: Path) -> frozenset[str] | None:
    """Stages of which DVC sees a changed dependency, parameter or output; None where it cannot say."""
    command = [sys.executable, "-m", "dvc", "status", "--json"]
    answer = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    try:
        return frozenset(json.loads(answer.stdout)) if answer.returncode == 0 else None
    except ValueError:
        return None


def stages_to_run(graph: Graph, changed: frozenset[str] | None) -> frozenset[str]:
    """The changed stages and all that follow them; without DVC's word, all.

    A stage that follows may be spared after all, if what comes before it turns out as it was.
    """
    running: set[str] = set()
    for stage, before in graph.items():
        if changed is None or stage in changed or running.intersection(before):
            running.add(stage)
    return frozenset(running)
