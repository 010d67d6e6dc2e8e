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
from pipeline.paths import DataPaths, WorkPaths
from pipeline.run_log import RunLog
from pipeline.runs.grid import RunSpec, expand_grid
from pipeline.runs.ledger import Ledger
from pipeline.stages.harness import StageContext
from pipeline.stages.study_runs import missing_runs, next_runs, resolve_runs
from pipeline.training.effective_settings import launch_plan
from pipeline.training.settings import DatasetInfo

_TIMED_IMAGES = 24
# Krizhevsky (2009): training images, test images, classes.
_PUBLISHED = {"cifar10": (50_000, 10_000, 10), "cifar100": (50_000, 10_000, 100)}


@dataclass(frozen=True, kw_only=True)
class DataSize:
    """Size of a data set.

    Attributes:
        n_train: training images.
        n_test: test images.
        n_classes: classes.
        source: `prepared`, `published` or `counted`.
        decode_s: seconds that all cores together take to read and decode an image, if images stay in their files;
            otherwise 0.
    """

    n_train: int
    n_test: int
    n_classes: int
    source: str
    decode_s: float = 0.0


def data_size(config: PrepareConfig, paths: DataPaths, *, prepared: bool) -> DataSize:
    """Return the size of the data set that `config` describes, without downloading or decoding it.

    Args:
        prepared: whether data/prepare holds the data of `config`. It is then read, unless reading files must be timed.

    Raises:
        InputError: the folder or archive is not a data set.
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
            label_column=config.label_column,
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
    """Return `DataSize.decode_s`, measured on a few training images from the whole folder."""
    if config.storage == "array" or images.files_in is None:
        return 0.0
    assert config.folder is not None
    chosen = images.train[:: -(-len(images.train) // _TIMED_IMAGES)]
    paths = [config.folder / images.files_in / sample.path for sample in chosen]
    start = time.perf_counter()
    for path in paths:
        with contextlib.suppress(UnreadableError, OSError):  # the stage `prepare` reports it
            decode_image(path.read_bytes(), config.image_size, max_megapixels=config.max_megapixels)
    return (time.perf_counter() - start) / len(paths) / len(os.sched_getaffinity(0))


def n_kept_images(params: Params, network: str, n_train: int, paths: DataPaths, *, filtered: bool) -> int:
    """Return the training images that the filter of `network` keeps; all if only a run can find out.

    Args:
        filtered: whether data/filter holds the results of `params`. They are then read.
    """
    if filtered:
        return int(read_json(paths.filter_metrics(network))["n_kept"])
    return n_train - round((params.filter.drop_fraction_for(network) or 0.0) * n_train)


class _SilentCounter(ProgressCounter):
    def update(self, n: int = 1) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """The runs of a study.

    Attributes:
        total: all runs.
        skipped: reason -> runs that cannot be trained.
        missing: runs to train.
        shared: missing runs that an earlier study trains.
        threads: CPU threads of each training process, which are part of a run's key; None on a GPU.
    """

    total: int
    skipped: dict[str, int]
    missing: list[RunSpec]
    shared: int = 0
    threads: int | None = None


def plan_from_ledger(params: Params, name: str, data: DataPaths, work: WorkPaths) -> StudyPlan:
    """Return what the train stage would do now, with its inputs as they are on disk.

    For a study with looks that has no verdict yet, count all runs that it may take.
    """
    context = StageContext(stage="train", item=name, params=params, data=data, work=work, log=RunLog.silent())
    recipe = params.studies[name].effective_recipe(params.train)
    workers = worker_count(recipe)
    world = World(rank=0, size=workers, device=planned_device(workers))
    prepared = load_prepared(data, folder=context.image_folder)
    runs, ledger = resolve_runs(context, prepared, world, threads=thread_count(recipe)), Ledger(work.ledger)
    complete = not next_runs(context, runs, ledger, len(prepared.test.labels))
    missing = [] if complete else missing_runs(runs, ledger, params.studies[name].keep_weights)
    return StudyPlan(
        total=len(runs),
        skipped=_skipped([run.spec for run in runs]),
        missing=[runs[index].spec for index in missing],
        threads=_key_threads(recipe),
    )


def plan_from_sizes(params: Params, name: str, size: DataSize, n_kept: Mapping[str, int]) -> StudyPlan:
    """Return all runs of a study whose data do not exist yet; `n_kept`: network -> images that its filter keeps."""
    dataset = DatasetInfo(
        n_classes=size.n_classes, image_size=params.prepare.image_size, mean=(0.5,) * 3, std=(0.25,) * 3
    )
    study = params.studies[name]
    runs = expand_grid(study, params.train, dataset, size.n_train, n_kept)
    return StudyPlan(
        total=len(runs),
        skipped=_skipped(runs),
        missing=[run for run in runs if not run.skip_reason],
        threads=_key_threads(study.effective_recipe(params.train)),
    )


def deduplicate_runs(plans: Mapping[str, StudyPlan]) -> dict[str, StudyPlan]:
    """Return the plans of studies, by name, with each run that several share counted with the first of them."""
    seen: set[str] = set()
    unique = {}
    for name, plan in plans.items():
        keys = [_run_identity(run, plan.threads) for run in plan.missing]
        first = [run for run, key in zip(plan.missing, keys, strict=True) if key not in seen]
        unique[name] = dataclasses.replace(plan, missing=first, shared=len(keys) - len(first))
        seen.update(keys)
    return unique


def _run_identity(run: RunSpec, threads: int | None) -> str:
    """Return a key that separates a run from all others on the same data."""
    images: list[str | float | None] = [run.arm] if run.arm == "full" else [run.arm, run.filter_network]
    if run.arm == "relabeled":
        images.append(run.relabel_above)
    return json.dumps([images, dataclasses.asdict(run.settings), threads], sort_keys=True)


def worker_count(recipe: Recipe) -> int:
    """Return the number of processes that would train `recipe` on this machine."""
    plan = launch_plan(recipe)
    return choose_workers(plan.workers, plan.valid_world_sizes)


def thread_count(recipe: Recipe) -> int:
    """Return the CPU threads of each process that trains `recipe`."""
    return threads_per_process(launch_plan(recipe).threads, worker_count(recipe))


def _key_threads(recipe: Recipe) -> int | None:
    return thread_count(recipe) if planned_device(worker_count(recipe)).type == "cpu" else None


def planned_device(workers: int) -> torch.device:
    """Return the device of `workers` processes: GPUs if there is one for each, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.device_count() >= workers else "cpu")


def _skipped(runs: list[RunSpec]) -> dict[str, int]:
    return dict(Counter(run.skip_reason for run in runs if run.skip_reason))


Graph = Mapping[str, tuple[str, ...]]
"""Name of a stage in DVC -> the stages whose outputs it reads, in an order in which they can run."""


def stage_graph(params: Params) -> Graph:
    """Return the graph that dvc.yaml makes of the networks and studies of `params`."""
    graph: dict[str, tuple[str, ...]] = {"prepare": ()}
    chain = ("finetune", "extract", "reduce", "filter")
    for stage, previous in zip(chain, ("prepare", *chain), strict=False):
        for network in params.networks:
            graph[f"{stage}@{network}"] = (previous if previous == "prepare" else f"{previous}@{network}",)
    for name, study in params.studies.items():
        graph[f"train@{name}"] = _stages_before(study.needs or study.possible_needs[0], params.networks)
    graph["report"] = tuple(stage for stage in graph if stage.startswith(("filter", "train")))
    return graph


def _stages_before(needs: str, networks: Sequence[str]) -> tuple[str, ...]:
    """Return the stages before a study, from its key `needs`."""
    stage, _, network = needs.partition("/")
    if stage == "prepare":
        return ("prepare",)
    return (f"{stage}@{network}",) if network else tuple(f"{stage}@{name}" for name in networks)


def changed_stages(project: Path) -> frozenset[str] | None:
    """Return the stages with a dependency, parameter or output that DVC calls changed; None if DVC fails."""
    command = [sys.executable, "-m", "dvc", "status", "--json"]
    answer = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    try:
        return frozenset(json.loads(answer.stdout)) if answer.returncode == 0 else None
    except ValueError:
        return None


def stages_to_run(graph: Graph, changed: frozenset[str] | None) -> frozenset[str]:
    """Return the changed stages and all after them; all stages if `changed` is None.

    DVC skips a later stage after all if the outputs before it stay equal.
    """
    running: set[str] = set()
    for stage, previous in graph.items():
        if changed is None or stage in changed or running.intersection(previous):
            running.add(stage)
    return frozenset(running)
