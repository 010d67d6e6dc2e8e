"""Stage `train`: train the runs of one study that are not cached, and write the tables of all its runs."""

import itertools
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from pipeline import distributed
from pipeline.artifacts.files import atomic_path, remove_leftovers, write_array, write_json
from pipeline.artifacts.plans import register_plan, utc_timestamp, write_run_dates
from pipeline.artifacts.prepared import PLANTED_COLUMN, PreparedData, load_prepared, prepared_digest, prepared_files
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import read_csv, read_parquet, write_parquet
from pipeline.config.study import KeepWeights, TrainConfig, build_plan, plan_hash
from pipeline.distributed import World
from pipeline.energy import UNKNOWN_ENERGY, total_energy
from pipeline.errors import InputError
from pipeline.stages.harness import StageContext
from pipeline.stages.parallel import run_parallel_stage
from pipeline.stats.sequential import SequentialDesign
from pipeline.training.cells import HISTORY_SCHEMA, RUNS_SCHEMA, LoadedSplits, execute_run, run_row
from pipeline.training.checkpointing import (
    STALE_AFTER_S,
    make_checkpointer,
    remove_stale_checkpoints,
    stop_and_save_flags,
)
from pipeline.training.folds import has_checkpoints
from pipeline.training.grid import RunSpec, RunVariant, expand_grid, run_variant, train_mask
from pipeline.training.loop import RunOptions
from pipeline.training.result_cache import RunCache, RunResult
from pipeline.training.run_key import RunKey, checkpoint_folder_name, run_key
from pipeline.training.settings import DatasetInfo, comm_config_from, launch_plan
from pipeline.training.stopping import needed_seeds


def train_study(context: StageContext, ranks: World) -> None:
    """Train the missing runs of `context.item`, a study, then write its tables."""
    data = load_prepared(context.data, folder=context.image_folder)
    cells, members, identities = resolve_runs(context, data, ranks)
    keys = run_key_digests(identities)
    if ranks.is_main:
        _register_plans(context)
    cache = RunCache(context.work.run_cache)
    n_test, ran = len(data.test.labels), []
    # The disk of rank 0 is authoritative.
    while todo := distributed.broadcast(next_runs(context, cells, keys, cache, n_test) if ranks.is_main else []):
        _run(todo, context, ranks, data, cells, members, identities, cache)
        ran += [keys[i] for i in todo]
    if ranks.is_main:
        used = _used_cells(context, cells, keys, cache, n_test)
        cells, keys = [cells[i] for i in used], [keys[i] for i in used]
        if looks := context.params.studies[str(context.item)].looks:
            seeds = len({cell.settings.seed for cell in cells})
            context.log.info(f"{context.name}: complete with {seeds} seeds, of looks at {list(looks)}")
        _count_work(context, cells, keys, ran, cache)
        _write_results(context, cells, keys, cache)
        # Checkpoints of settings that the study no longer has.
        remove_stale_checkpoints(context.work.checkpoints(context.name), max_age_s=STALE_AFTER_S)


def _register_plans(context: StageContext) -> None:
    """Register the plans of all studies, so that a run which two studies share is older than neither plan."""
    params, now = context.params, datetime.now(UTC)
    for name, study in params.studies.items():
        plan = build_plan(name, study, params.train, params.report)
        if register_plan(context.work.plans(name), plan, now):
            context.log.info(f"{context.name}: plan of study {name} registered, SHA-256 {plan_hash(plan)}")


def resolve_runs(
    context: StageContext, data: PreparedData, ranks: World, *, threads: int | None = None
) -> tuple[list[RunSpec], list[NDArray[np.bool_]], list[RunKey | None]]:
    """The study's runs, the rows (N,) bool that each trains on, and its key, None if it is skipped.

    Args:
        threads: CPU threads of each training process; None: as many as this process has.
    """
    study = context.params.studies[str(context.item)]
    n = len(data.train.labels)
    chosen = set(study.arms) != {"full"}
    keep = {network: _kept_rows(context, network, n) for network in study.filter_networks if chosen}
    _check_replicates_differ(keep, context)
    summary = DatasetInfo(n_classes=len(data.class_names), image_size=data.image_size, mean=data.mean, std=data.std)
    cells = expand_grid(study, context.params.train, summary, n, {name: int(rows.sum()) for name, rows in keep.items()})
    members = [train_mask(cell, data.train.labels, keep) for cell in cells]
    data_digest = distributed.broadcast(prepared_digest(context.data) if ranks.is_main else None)
    identities = [
        None
        if cell.skipped
        else run_key(
            cell.settings, rows, data_digest=str(data_digest), device=ranks.device,
            threads=threads or torch.get_num_threads(),
        )
        for cell, rows in zip(cells, members, strict=True)
    ]  # fmt: skip
    return cells, members, identities


def _check_replicates_differ(keep: Mapping[str, NDArray[np.bool_]], context: StageContext) -> None:
    """Refuse equal filters: they would count as independent replicates."""
    for left, right in itertools.combinations(keep, 2):
        if np.array_equal(keep[left], keep[right]):
            raise InputError(
                f"studies.{context.item}.filter_replicates: {left} and {right} keep the same images, so one is no "
                "replicate; lower filter_replicates, or use a scorer or an extractor with random parts"
            )


def run_key_digests(identities: Sequence[RunKey | None]) -> list[str]:
    """Names in the cache; empty for what is skipped."""
    return [identity.key if identity else "" for identity in identities]


def next_runs(context: StageContext, cells: list[RunSpec], keys: list[str], cache: RunCache, n_test: int) -> list[int]:
    """Which cells are to be trained before the next look, or all that are missing; none when the study is complete."""
    keep = context.params.studies[str(context.item)].keep_weights
    used = set(_used_cells(context, cells, keys, cache, n_test))
    return [i for i in missing_runs(cells, keys, cache, keep) if i in used]


def _used_cells(
    context: StageContext, cells: list[RunSpec], keys: list[str], cache: RunCache, n_test: int
) -> list[int]:
    """Those of the seeds up to the next look, or to the one that decided; all without looks."""
    study, report = context.params.studies[str(context.item)], context.params.report
    design = None
    if study.looks:
        design = SequentialDesign(looks=study.looks, margin=report.margin / 100, alpha=report.alpha)
    seeds = needed_seeds(cells, keys, cache, design=design, control=report.primary, n_images=n_test)
    return [i for i, cell in enumerate(cells) if cell.settings.seed in seeds]


def missing_runs(cells: list[RunSpec], keys: list[str], cache: RunCache, keep: KeepWeights) -> list[int]:
    """Which cells are to be trained; those that came out equal, arms included, are one run."""
    firsts = sorted({key: i for i, key in reversed(list(enumerate(keys))) if key}.values())
    return [i for i in firsts if not cache.has(keys[i], with_weights=_keeps_weights(cells[i], cells, keep))]


def _keeps_weights(cell: RunSpec, cells: list[RunSpec], keep: KeepWeights) -> bool:
    """The weights of one seed are enough to hand out, and a fraction of the disk."""
    return keep == "all" or cell.settings.seed == cells[0].settings.seed


def _kept_rows(context: StageContext, network: str, n_train: int) -> NDArray[np.bool_]:
    """(n_train,) bool from the filter's kept.csv."""
    path = context.data.kept(network)
    columns = {"sample_id": pa.int64(), "path": pa.string(), "label_name": pa.string()}
    kept = read_csv(path, columns, optional=[PLANTED_COLUMN])
    ids = kept["sample_id"].to_numpy()
    images = read_parquet(context.data.manifest("train"), ["path"])["path"]
    in_range = len(ids) > 0 and ids.dtype.kind == "i" and ids.min() >= 0 and ids.max() < n_train
    # A table of another preparation may have row numbers that exist and mean other images.
    if not in_range or len(np.unique(ids)) < len(ids) or kept["path"].to_pylist() != images.take(ids).to_pylist():
        raise InputError(f"{path}: does not fit the {n_train} training images; run `dvc repro`")
    keep = np.zeros(n_train, dtype=np.bool_)
    keep[ids] = True
    return keep


def _run(
    todo: list[int],
    context: StageContext,
    ranks: World,
    data: PreparedData,
    cells: list[RunSpec],
    members: list[NDArray[np.bool_]],
    identities: list[RunKey | None],
    cache: RunCache,
) -> None:
    splits = LoadedSplits(
        train_images=data.train.source,
        train_labels=data.train.labels,
        test_images=data.test.source,
        test_labels=data.test.labels,
        class_names=data.class_names,
    )
    if ranks.is_main:
        context.work.run_cache.mkdir(parents=True, exist_ok=True)
        remove_leftovers(context.work.run_cache)
    recipe, flag_sync = _recipe(context), stop_and_save_flags()
    for count, i in enumerate(todo, start=1):
        settings, identity = cells[i].settings, identities[i]
        assert identity is not None, "what is skipped is not to do"
        what = f"{cells[i].arm} of {cells[i].filter_network}, batch {settings.batch_size}, seed {settings.seed}"
        title = f"{context.name} {count}/{len(todo)}: {what}"
        kept = _keeps_weights(cells[i], cells, context.params.studies[str(context.item)].keep_weights)
        weights = context.work.run_cache / f".{identity.key}.weights.{os.getpid()}.tmp" if kept else None
        folder = context.work.checkpoints(context.name) / checkpoint_folder_name(identity.key)
        resumed = has_checkpoints(folder)
        checkpointer = make_checkpointer(recipe.checkpoint, folder, flag_sync, ranks)
        with checkpointer.handle_sigterm():
            before = context.joules()
            result = execute_run(
                cells[i], splits, members[i], ranks=ranks, log=context.log,
                weights=weights, eval_batch_size=recipe.eval_batch_size,
                options=RunOptions(
                    title=title, micro_batch=recipe.micro_batch, comm=comm_config_from(recipe),
                    checkpointer=checkpointer,
                ),
            )  # fmt: skip
            used = context.joules() - before
            joules = UNKNOWN_ENERGY if resumed else used
            result = replace(result, joules=joules, recorded=utc_timestamp(datetime.now(UTC)))
            if ranks.is_main:
                cache.add(identity, result, weights if result.status == "finished" else None)
                checkpointer.clear()
                shown = f"top-1 {result.top1:.4f}" if result.top1 is not None else result.status
                context.log.info(f"{title}: {shown} in {result.seconds:.1f} s")


def _count_work(context: StageContext, cells: list[RunSpec], keys: list[str], ran: list[str], cache: RunCache) -> None:
    """Count the images, seconds and energy of all runs of the study, including cached ones."""
    results = {key: cache.get(key) for key in sorted({key for key in keys if key})}
    for key, result in results.items():
        context.images.append(result.history[-1].examples if result.history else 0)
        if key not in ran:
            context.earlier_seconds.append(result.seconds)
        if key not in ran or result.joules == UNKNOWN_ENERGY:
            context.extra_joules.append(result.joules)
    for cell, key in zip(cells, keys, strict=True):
        if key:
            # Equal arms share a run; each would have cost as much.
            context.arm_seconds[cell.arm] = context.arm_seconds.get(cell.arm, 0.0) + results[key].seconds
            joules = [context.arm_joules[cell.arm]] if cell.arm in context.arm_joules else []
            context.arm_joules[cell.arm] = total_energy([*joules, results[key].joules])


def _write_results(context: StageContext, cells: list[RunSpec], keys: list[str], cache: RunCache) -> None:
    """Write the study's tables, per-image results, metrics, best network and the dates of its runs."""
    name = str(context.item)
    study, paths = context.params.studies[name], context.data
    remove_leftovers(paths.runs(name).parent)
    remove_leftovers(paths.trained_weights(name).parent)
    results: list[RunResult | None] = [cache.get(key) if key else None for key in keys]
    rows = [run_row(name, cell, key, result) for cell, key, result in zip(cells, keys, results, strict=True)]
    write_parquet(paths.runs(name), pa.Table.from_pylist(rows, schema=RUNS_SCHEMA))
    history = [
        {"study": name, "fingerprint": key, **vars(record)}
        for key, result in dict(zip(keys, results, strict=True)).items()
        if result
        for record in result.history
    ]
    write_parquet(paths.history(name), pa.Table.from_pylist(history, schema=HISTORY_SCHEMA))
    n_test = max((len(result.correct) for result in results if result and result.correct is not None), default=0)
    nothing = np.zeros(n_test, dtype=np.bool_)
    correct = [result.correct if result and result.correct is not None else nothing for result in results]
    write_array(paths.correct(name), np.stack(correct))
    write_json(paths.train_metrics(name), _accuracies(cells, results))
    recorded = {key: result.recorded for key, result in zip(keys, results, strict=True) if result}
    write_run_dates(context.work.plans(name), recorded)
    outputs = [paths.runs(name), paths.history(name), paths.correct(name), paths.train_metrics(name)]
    kept = [paths.kept(network) for network in study.filter_networks if set(study.arms) != {"full"}]
    with atomic_path(paths.trained_weights(name)) as temporary:
        temporary.write_bytes(_best_weights(cells, keys, results, cache))
    write_provenance(
        paths.provenance("train", name),
        stage=context.name,
        parameters={
            "train": study.effective_recipe(context.params.train).model_dump(mode="json"),
            "study": study.model_dump(mode="json"),
        },
        inputs=[*prepared_files(paths), *kept],
        outputs=[*outputs, paths.trained_weights(name)],
    )


def _scores(cells: list[RunSpec], results: list[RunResult | None]) -> dict[RunVariant, list[float]]:
    """Top-1 of each variant's finished seeds."""
    scores: dict[RunVariant, list[float]] = defaultdict(list)
    for cell, result in zip(cells, results, strict=True):
        if result and result.top1 is not None:
            scores[run_variant(cell)].append(result.top1)
    return scores


def _accuracies(cells: list[RunSpec], results: list[RunResult | None]) -> dict[str, float]:
    """Mean top-1 per variant, for `dvc metrics`; the report has the rest."""
    return {
        f"{model} {_arm(arm, network, cells)} batch {batch} lr {rate:g} wd {decay:g}": float(np.mean(values))
        for (model, arm, network, batch, rate, decay), values in _scores(cells, results).items()
    }


def _arm(arm: str, network: str, cells: list[RunSpec]) -> str:
    """Arm, with the filter's network if it is not the study's first."""
    return arm if network == cells[0].filter_network else f"{arm} of {network}"


def _best_weights(cells: list[RunSpec], keys: list[str], results: list[RunResult | None], cache: RunCache) -> bytes:
    """The network file of the first seed of the variant with the highest mean; empty if none finished.

    A variant whose first seed diverged has no file; then the next best one is used.
    """
    scores = _scores(cells, results)
    files = {
        run_variant(cell): cache.weights(key)
        for cell, key in zip(cells, keys, strict=True)
        # Weights of other seeds, left by another study, must not change this result.
        if key and cell.settings.seed == cells[0].settings.seed and cache.weights(key).exists()
    }
    best = max(files, key=lambda variant: float(np.mean(scores[variant])), default=None)
    return files[best].read_bytes() if best else b""


def main() -> None:
    """`python -m pipeline.stages.train --study NAME`."""
    run_parallel_stage(
        "train",
        train_study,
        item="study",
        plan=lambda context: launch_plan(_recipe(context)),
    )


def _recipe(context: StageContext) -> TrainConfig:
    return context.params.studies[str(context.item)].effective_recipe(context.params.train)


if __name__ == "__main__":
    main()
