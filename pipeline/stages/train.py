"""Stage `train`: train the runs of one study that are not in the ledger, and write the tables of all its runs."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import torch

from pipeline import distributed
from pipeline.artifacts.files import atomic_path, remove_leftovers, write_array, write_json
from pipeline.artifacts.plans import register_plan, utc_timestamp, write_run_dates
from pipeline.artifacts.prepared import PreparedData, load_prepared, prepared_digests, prepared_files
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.stage_inputs import filters_of_study, input_paths
from pipeline.artifacts.tables import write_parquet
from pipeline.config.batch_sizes import LARGEST
from pipeline.config.study import KeepWeights, TrainConfig
from pipeline.config.study_plan import build_plan, plan_hash
from pipeline.distributed import World
from pipeline.energy import UNKNOWN_ENERGY, total_energy
from pipeline.live import LiveMetrics, StudyProgress, following_stages
from pipeline.processes import check_space
from pipeline.runs.arm_rows import TrainRows, check_replicates_differ, read_decisions, train_rows
from pipeline.runs.checkpoints import clear_finished, has_checkpoints, run_checkpointer, unused_checkpoints
from pipeline.runs.execution import LoadedSplits, execute_run
from pipeline.runs.grid import RunSpec, expand_grid, needed_seeds, run_variant
from pipeline.runs.largest_batch import with_largest_batch
from pipeline.runs.ledger import Ledger, RunResult
from pipeline.runs.study_tables import scores_by_variant, study_tables
from pipeline.stages.harness import StageContext
from pipeline.stages.parallel import run_parallel_stage
from pipeline.stats.sequential import SequentialDesign
from pipeline.training.checkpointing import STALE_AFTER_S, remove_stale_checkpoints, stop_and_save_flags
from pipeline.training.effective_settings import comm_config_from, launch_plan
from pipeline.training.run_key import RunKey, checkpoint_folder_name, run_key
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import DatasetInfo, TrainSettings
from pipeline.training.weights import weight_bytes


def train_study(context: StageContext, world: World) -> None:
    """Train the missing runs of `context.item`, a study, then write its tables."""
    context, data = load_study(context, world)
    specs, rows, run_keys = resolve_runs(context, data, world)
    keys = fingerprints(run_keys)
    if world.is_main:
        register_plans(context)
    ledger, checkpoints = Ledger(context.work.ledger), context.work.checkpoints(context.name)
    if world.is_main:
        _check_space(context, specs, n_test=len(data.test.labels))
        damaged = ledger.set_aside_damaged(sorted({key for key in keys if key}), data.test.labels)
        for line in (*damaged, *unused_checkpoints(checkpoints, keys)):
            context.log.info(f"{context.name}: {line}")
    n_test, ran = len(data.test.labels), []
    # The disk of rank 0 is authoritative.
    while todo := distributed.broadcast(next_runs(context, specs, keys, ledger, n_test) if world.is_main else []):
        _run(todo, context, world, data, specs, rows, run_keys)
        ran += [keys[i] for i in todo]
    if world.is_main:
        used = used_runs(context, specs, keys, ledger, n_test)
        specs, keys = [specs[i] for i in used], [keys[i] for i in used]
        if looks := context.params.studies[str(context.item)].looks:
            seeds = len({spec.settings.seed for spec in specs})
            context.log.info(f"{context.name}: complete with {seeds} seeds, of looks at {list(looks)}")
        _count_work(context, specs, keys, ran, ledger)
        _write_results(context, specs, keys, ledger)
        clear_finished(checkpoints, keys)
        # Checkpoints of settings that the study no longer has.
        remove_stale_checkpoints(checkpoints, max_age_s=STALE_AFTER_S)


def load_study(context: StageContext, world: World) -> tuple[StageContext, PreparedData]:
    """Return the images, and the context with a number for `largest` in the study's batch sizes; all ranks call it."""
    data = load_prepared(context.data, folder=context.image_folder)
    params = with_largest_batch(
        context.params, str(context.item), data, paths=context.data, work=context.work, world=world,
        say=context.log.info,
    )  # fmt: skip
    return replace(context, params=params), data


def _check_space(context: StageContext, specs: Sequence[RunSpec], *, n_test: int) -> None:
    """Check the room for the largest network and the tables; `specs` without runs have none."""
    sizes = {(spec.settings.network, spec.settings.stem): spec.settings for spec in specs if not spec.skip_reason}
    weights = max((weight_bytes(settings) for settings in sizes.values()), default=0)
    check_space(context.data.runs(str(context.item)).parent, weights + len(specs) * n_test)
    check_space(context.work.ledger, weights + n_test)


def register_plans(context: StageContext) -> None:
    """Register the plans of all studies, so that a run which two studies share is older than neither plan.

    A plan with `largest` is incomplete until its own stage has found the number.
    """
    params, now = context.params, datetime.now(UTC)
    for name, study in params.studies.items():
        if LARGEST in study.batch_sizes:
            continue
        plan = build_plan(name, study, params.train, params.report)
        if register_plan(context.work.plans(name), plan, now):
            context.log.info(f"{context.name}: plan of study {name} registered, SHA-256 {plan_hash(plan)}")


def resolve_runs(
    context: StageContext, data: PreparedData, world: World, *, threads: int | None = None
) -> tuple[list[RunSpec], list[TrainRows], list[RunKey | None]]:
    """Return the runs of a study, the images and labels that each trains on, and each run's key.

    Args:
        threads: CPU threads of each training process; None: as many as this process has.

    Returns:
        Three lists of one length. The key of a skipped run is None.

    Raises:
        InputError: a filter's table does not fit the data, two replicates of the filter keep the same images, or a run
            cannot be trained, see `expand_grid`.
    """
    study = context.params.studies[str(context.item)]
    labels, needs_filter = data.train.labels, set(study.arms) != {"full"}
    decisions = {
        network: read_decisions(context.data, data, network, suggestions=study.relabel_above is not None)
        for network in study.filter_networks
        if needs_filter
    }
    keep = {network: of_filter.keep for network, of_filter in decisions.items()}
    check_replicates_differ(keep, str(context.item))
    summary = DatasetInfo(n_classes=len(data.class_names), image_size=data.image_size, mean=data.mean, std=data.std)
    n_kept = {name: int(kept.sum()) for name, kept in keep.items()}
    specs = expand_grid(study, context.params.train, summary, len(labels), n_kept)
    rows = [train_rows(spec, labels, decisions) for spec in specs]
    changed = [np.flatnonzero(trained.changed(labels)) for trained in rows]
    specs = [replace(spec, n_relabeled=len(ids)) for spec, ids in zip(specs, changed, strict=True)]
    data_digest, content = distributed.broadcast(prepared_digests(context.data) if world.is_main else ("", ""))
    run_keys = [
        None
        if spec.skip_reason
        else run_key(
            spec.settings, trained.mask, data_digest=data_digest, data_content=content, device=world.device,
            threads=threads or torch.get_num_threads(),
            relabeled=dict(zip(ids.tolist(), trained.labels[ids].tolist(), strict=True)),
        )
        for spec, trained, ids in zip(specs, rows, changed, strict=True)
    ]  # fmt: skip
    return specs, rows, run_keys


def fingerprints(run_keys: Sequence[RunKey | None]) -> list[str]:
    """Return the fingerprint of each run, its name in the ledger; empty for skipped runs."""
    return [key.fingerprint if key else "" for key in run_keys]


def next_runs(context: StageContext, specs: list[RunSpec], keys: list[str], ledger: Ledger, n_test: int) -> list[int]:
    """Return the indices of the missing runs before the next look, or of all without looks; empty when complete."""
    keep = context.params.studies[str(context.item)].keep_weights
    used = set(used_runs(context, specs, keys, ledger, n_test))
    return [i for i in missing_runs(specs, keys, ledger, keep) if i in used]


def used_runs(context: StageContext, specs: list[RunSpec], keys: list[str], ledger: Ledger, n_test: int) -> list[int]:
    """Return the indices of the runs with seeds up to the next look, or the look that decided; all without looks."""
    study, report = context.params.studies[str(context.item)], context.params.report
    design = None
    if study.looks:
        design = SequentialDesign(looks=study.looks, margin=report.margin / 100, alpha=report.alpha)
    seeds = needed_seeds(specs, keys, ledger, design=design, control=report.primary, n_images=n_test)
    return [i for i, spec in enumerate(specs) if spec.settings.seed in seeds]


def missing_runs(specs: list[RunSpec], keys: list[str], ledger: Ledger, keep: KeepWeights) -> list[int]:
    """Return the indices of the runs to train; runs with equal keys, also of different arms, are trained once."""
    firsts = sorted({key: i for i, key in reversed(list(enumerate(keys))) if key}.values())
    return [i for i in firsts if not ledger.has(keys[i], with_weights=_keeps_weights(specs[i], specs, keep))]


def _keeps_weights(spec: RunSpec, specs: list[RunSpec], keep: KeepWeights) -> bool:
    """Return whether a run's weights are saved; one seed suffices for publishing and takes less of the disk."""
    return keep == "all" or (keep == "first_seed" and spec.settings.seed == specs[0].settings.seed)


def _run(
    todo: list[int],
    context: StageContext,
    world: World,
    data: PreparedData,
    specs: list[RunSpec],
    rows: list[TrainRows],
    run_keys: list[RunKey | None],
    live_name: str = "",
) -> None:
    """Train the runs with the indices `todo`, and add each to the ledger when it ends; all ranks call it.

    Args:
        live_name: of the metrics of these runs; empty if no other process trains runs of the study.
    """
    ledger = Ledger(context.work.ledger)
    splits = LoadedSplits(
        train_images=data.train.source,
        test_images=data.test.source,
        test_labels=data.test.labels,
        class_names=data.class_names,
    )
    if world.is_main:
        context.work.ledger.mkdir(parents=True, exist_ok=True)
        remove_leftovers(context.work.ledger)
    study, recipe, flag_sync = context.params.studies[str(context.item)], recipe_of(context), stop_and_save_flags()
    following = following_stages(str(context.item), context.params.studies)
    study_progress = StudyProgress([_n_images(specs[i].settings) for i in todo], following=following)
    live_folder = context.data.live_metrics / live_name
    # Only rank 0 has it, and writes.
    live = LiveMetrics(live_folder, study=str(context.item), n_runs=len(todo)) if world.is_main else None
    for i in todo:
        settings, run_key = specs[i].settings, run_keys[i]
        assert run_key is not None, "skipped runs are not in todo"
        name = specs[i].description
        save_weights = _keeps_weights(specs[i], specs, study.keep_weights)
        key = run_key.fingerprint
        weights = context.work.ledger / f".{key}.weights.{os.getpid()}.tmp" if save_weights else None
        folder = context.work.checkpoints(context.name) / checkpoint_folder_name(key)
        resumed = has_checkpoints(folder)
        checkpointer = run_checkpointer(
            recipe.checkpoint, folder, flag_sync, world, run=key, settings=settings,
            kept=context.work.kept_checkpoints(key) if study.keep_checkpoints else None,
        )  # fmt: skip
        if live is not None:
            live.start_run(name)
        with checkpointer.stop_at_signals():
            before, begun = context.joules(), time.monotonic()
            result = execute_run(
                specs[i], splits, rows[i], world=world, log=context.log,
                weights=weights, eval_batch_size=recipe.eval_batch_size,
                options=RunOptions(
                    title=study_progress.begin_run(), micro_batch=recipe.micro_batch, comm=comm_config_from(recipe),
                    checkpointer=checkpointer, on_record=live.record if live is not None else None,
                ),
            )  # fmt: skip
            elapsed, used = time.monotonic() - begun, context.joules() - before
            earlier = max(0.0, result.seconds - elapsed) if resumed else 0.0
            context.earlier_seconds.append(earlier)
            joules = UNKNOWN_ENERGY if resumed else used
            result = replace(result, joules=joules, recorded=utc_timestamp(datetime.now(UTC)))
            if live is not None:
                ledger.add(run_key, result, weights if result.status == "finished" else None)
                checkpointer.clear()
                live.end_run(result.top1, study_progress.end_run(earlier))
                # Of a process that trains a part of the study, the stage prints the line.
                if not live_name:
                    context.log.info(f"{context.name}: {study_progress.where}; {name}: {result.outcome}")


def train_runs(context: StageContext, world: World, wanted: Sequence[str], *, live_name: str) -> None:
    """Train the runs of `context.item` with the keys `wanted`, and write no table."""
    context, data = load_study(context, world)
    specs, rows, run_keys = resolve_runs(context, data, world)
    keys = fingerprints(run_keys)
    _run([keys.index(key) for key in wanted], context, world, data, specs, rows, run_keys, live_name=live_name)


def _n_images(settings: TrainSettings) -> int:
    return settings.batch_sizes.examples(settings.steps)


def _count_work(context: StageContext, specs: list[RunSpec], keys: list[str], ran: list[str], ledger: Ledger) -> None:
    """Count the images, seconds and energy of all runs of the study, including those of the ledger."""
    results = {key: ledger.get(key) for key in sorted({key for key in keys if key})}
    for key, result in results.items():
        context.images.append(result.history[-1].examples if result.history else 0)
        if key not in ran:
            context.earlier_seconds.append(result.seconds)
        if key not in ran or result.joules == UNKNOWN_ENERGY:
            context.extra_joules.append(result.joules)
    for spec, key in zip(specs, keys, strict=True):
        if key:
            # Equal arms share a run, and each counts its full cost.
            context.arm_seconds[spec.arm] = context.arm_seconds.get(spec.arm, 0.0) + results[key].seconds
            joules = [context.arm_joules[spec.arm]] if spec.arm in context.arm_joules else []
            context.arm_joules[spec.arm] = total_energy([*joules, results[key].joules])


def _write_results(context: StageContext, specs: list[RunSpec], keys: list[str], ledger: Ledger) -> None:
    """Write the study's tables, per-image results, metrics, best network and the dates of its runs."""
    name = str(context.item)
    study, paths = context.params.studies[name], context.data
    remove_leftovers(paths.runs(name).parent)
    remove_leftovers(paths.trained_weights(name).parent)
    results: list[RunResult | None] = [ledger.get(key) if key else None for key in keys]
    tables = study_tables(name, specs, keys, results)
    write_parquet(paths.runs(name), tables.runs)
    write_parquet(paths.history(name), tables.history)
    write_array(paths.correct(name), tables.correct)
    write_json(paths.train_metrics(name), tables.accuracies)
    recorded = {key: result.recorded for key, result in zip(keys, results, strict=True) if result}
    write_run_dates(context.work.plans(name), recorded)
    outputs = [paths.runs(name), paths.history(name), paths.correct(name), paths.train_metrics(name)]
    with atomic_path(paths.trained_weights(name)) as temporary:
        temporary.write_bytes(_best_weights(specs, keys, results, ledger) if study.keep_weights != "none" else b"")
    write_provenance(
        paths.provenance("train", name),
        stage=context.name,
        parameters={
            "train": study.effective_recipe(context.params.train).model_dump(mode="json"),
            "study": study.model_dump(mode="json"),
        },
        inputs=[*prepared_files(paths), *input_paths(filters_of_study(name, context.params, paths))],
        outputs=[*outputs, paths.trained_weights(name)],
    )


def _best_weights(specs: list[RunSpec], keys: list[str], results: list[RunResult | None], ledger: Ledger) -> bytes:
    """Return the weights file of the first seed of the variant with the highest mean top-1; empty if no run finished.

    A variant whose first seed diverged has no file; then the next best variant is used.
    """
    scores = scores_by_variant(specs, results)
    files = {
        run_variant(spec): ledger.weights(key)
        for spec, key in zip(specs, keys, strict=True)
        # Another study may have left weights of other seeds, which must not change this result.
        if key and spec.settings.seed == specs[0].settings.seed and ledger.weights(key).exists()
    }
    best = max(files, key=lambda variant: float(np.mean(scores[variant])), default=None)
    return files[best].read_bytes() if best else b""


def main() -> None:
    """Run the stage on the process's arguments and exit: `python -m pipeline.stages.train --study NAME`."""
    from pipeline.stages.concurrent_runs import train_concurrently  # imports this module

    run_parallel_stage(
        "train",
        train_study,
        item="study",
        plan=lambda context: launch_plan(recipe_of(context)),
        before=train_concurrently,
    )


def recipe_of(context: StageContext) -> TrainConfig:
    """Return the recipe of `context.item`, a study."""
    return context.params.studies[str(context.item)].effective_recipe(context.params.train)


if __name__ == "__main__":
    main()
