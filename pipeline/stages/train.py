"""Stage `train`: train the runs of one study that are not in the ledger, and write the tables of all its runs."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from pipeline import distributed
from pipeline.artifacts.files import atomic_path, remove_leftovers, write_array, write_json
from pipeline.artifacts.plans import register_plan, utc_timestamp, write_run_dates
from pipeline.artifacts.prepared import PreparedData, prepared_files
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.stage_inputs import filters_of_study, input_paths
from pipeline.artifacts.tables import write_parquet
from pipeline.config.batch_sizes import LARGEST
from pipeline.config.study_plan import build_plan, plan_hash
from pipeline.distributed import World
from pipeline.energy import UNKNOWN_ENERGY, total_energy
from pipeline.live import LiveMetrics, StudyProgress, following_stages
from pipeline.processes import check_space
from pipeline.runs.checkpoints import clear_finished, has_checkpoints, run_checkpointer, unused_checkpoints
from pipeline.runs.execution import LoadedSplits, execute_run
from pipeline.runs.grid import RunSpec, run_variant
from pipeline.runs.ledger import Ledger, RunResult
from pipeline.runs.study_tables import scores_by_variant, study_tables
from pipeline.stages.harness import StageContext
from pipeline.stages.parallel import run_parallel_stage
from pipeline.stages.study_runs import (
    ResolvedRun,
    keeps_weights,
    load_study,
    next_runs,
    resolve_runs,
    study_recipe,
    used_runs,
)
from pipeline.training.checkpointing import STALE_AFTER_S, remove_stale_checkpoints, stop_and_save_flags
from pipeline.training.effective_settings import comm_config_from, launch_plan
from pipeline.training.run_key import checkpoint_folder_name
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import TrainSettings
from pipeline.training.weights import weight_bytes


def train_study(context: StageContext, world: World) -> None:
    """Train the missing runs of `context.item`, a study, then write its tables."""
    context, data = load_study(context, world)
    runs = resolve_runs(context, data, world)
    keys = [run.fingerprint for run in runs]
    if world.is_main:
        register_plans(context)
    ledger, checkpoints = Ledger(context.work.ledger), context.work.checkpoints(context.name)
    if world.is_main:
        _check_space(context, [run.spec for run in runs], n_test=len(data.test.labels))
        restored = ledger.restore_replaced()
        damaged = ledger.set_aside_damaged(sorted({key for key in keys if key}), data.test.labels)
        for line in (*restored, *damaged, *unused_checkpoints(checkpoints, keys)):
            context.log.info(f"{context.name}: {line}")
    n_test, trained = len(data.test.labels), []
    # The disk of rank 0 is authoritative.
    while missing := distributed.broadcast_object(next_runs(context, runs, ledger, n_test) if world.is_main else []):
        _run(context, world, data, runs, missing)
        trained += [keys[index] for index in missing]
    if world.is_main:
        runs = [runs[index] for index in used_runs(context, runs, ledger, n_test)]
        if looks := context.params.studies[context.item_name].looks:
            seeds = len({run.spec.settings.seed for run in runs})
            context.log.info(f"{context.name}: complete with {seeds} seeds, of looks at {list(looks)}")
        _count_work(context, runs, trained, ledger)
        _write_results(context, runs, ledger)
        clear_finished(checkpoints, [run.fingerprint for run in runs])
        # Checkpoints of settings that the study no longer has.
        remove_stale_checkpoints(checkpoints, max_age_s=STALE_AFTER_S)


def _check_space(context: StageContext, specs: Sequence[RunSpec], *, n_test: int) -> None:
    """Check the room for the largest network and the tables; `specs` without runs have none."""
    sizes = {(spec.settings.network, spec.settings.stem): spec.settings for spec in specs if not spec.skip_reason}
    weights = max((weight_bytes(settings) for settings in sizes.values()), default=0)
    check_space(context.data.runs(context.item_name).parent, weights + len(specs) * n_test)
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


def _run(
    context: StageContext,
    world: World,
    data: PreparedData,
    runs: Sequence[ResolvedRun],
    missing: Sequence[int],
    live_name: str = "",
) -> None:
    """Train the runs with the indices `missing`, and add each to the ledger when it ends; all ranks call it.

    Args:
        runs: all of the study.
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
        for line in ledger.restore_replaced():
            context.log.info(f"{context.name}: {line}")
        remove_leftovers(context.work.ledger)
    study, recipe, flag_sync = context.params.studies[context.item_name], study_recipe(context), stop_and_save_flags()
    following = following_stages(context.item_name, context.params.studies)
    study_progress = StudyProgress([_n_images(runs[index].spec.settings) for index in missing], following=following)
    live_folder = context.data.live_metrics / live_name
    # Only rank 0 has it, and writes.
    live = None
    if world.is_main:
        live = LiveMetrics(live_folder, study=context.item_name, n_runs=len(missing), log=context.log.info)
    for run in (runs[index] for index in missing):
        assert run.key is not None, "skipped runs are never missing"
        settings, key = run.spec.settings, run.fingerprint
        save_weights = keeps_weights(run, runs, study.keep_weights)
        weights = context.work.ledger / f".{key}.weights.{os.getpid()}.tmp" if save_weights else None
        folder = context.work.checkpoints(context.name) / checkpoint_folder_name(key)
        resumed = has_checkpoints(folder)
        checkpointer = run_checkpointer(
            recipe.checkpoint, folder, flag_sync, world, run=key, settings=settings,
            kept=context.work.kept_checkpoints(key) if study.keep_checkpoints else None,
        )  # fmt: skip
        if live is not None:
            live.start_run(run.spec.description)
        with checkpointer.stop_at_signals():
            before, begun = context.joules(), time.monotonic()
            result = execute_run(
                run.spec, splits, run.rows, world=world, log=context.log,
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
                ledger.add(run.key, result, weights if result.status == "finished" else None)
                checkpointer.clear()
                live.end_run(result.top1, study_progress.end_run(earlier))
                # Of a process that trains a part of the study, the stage prints the line.
                if not live_name:
                    context.log.info(
                        f"{context.name}: {study_progress.where}; {run.spec.description}: {result.outcome}"
                    )


def train_runs(context: StageContext, world: World, wanted: Sequence[str], *, live_name: str) -> None:
    """Train the runs of `context.item` with the keys `wanted`, and write no table."""
    context, data = load_study(context, world)
    runs = resolve_runs(context, data, world)
    keys = [run.fingerprint for run in runs]
    _run(context, world, data, runs, [keys.index(key) for key in wanted], live_name=live_name)


def _n_images(settings: TrainSettings) -> int:
    return settings.batch_sizes.examples(settings.steps)


def _count_work(context: StageContext, runs: Sequence[ResolvedRun], trained: Sequence[str], ledger: Ledger) -> None:
    """Count the images, seconds and energy of all runs of the study; those with keys in `trained` are new."""
    results = {key: ledger.get(key) for key in sorted({run.fingerprint for run in runs if run.key})}
    for key, result in results.items():
        context.images.append(result.history[-1].examples if result.history else 0)
        if key not in trained:
            context.earlier_seconds.append(result.seconds)
        if key not in trained or result.joules == UNKNOWN_ENERGY:
            context.extra_joules.append(result.joules)
    for run in runs:
        if run.key:
            # Equal arms share a run, and each counts its full cost.
            arm, result = run.spec.arm, results[run.fingerprint]
            context.arm_seconds[arm] = context.arm_seconds.get(arm, 0.0) + result.seconds
            joules = [context.arm_joules[arm]] if arm in context.arm_joules else []
            context.arm_joules[arm] = total_energy([*joules, result.joules])


def _write_results(context: StageContext, runs: Sequence[ResolvedRun], ledger: Ledger) -> None:
    """Write the study's tables, per-image results, metrics, best network and the dates of its runs."""
    name = context.item_name
    study, paths = context.params.studies[name], context.data
    remove_leftovers(paths.runs(name).parent)
    remove_leftovers(paths.trained_weights(name).parent)
    results: list[RunResult | None] = [ledger.get(run.fingerprint) if run.key else None for run in runs]
    specs, keys = [run.spec for run in runs], [run.fingerprint for run in runs]
    tables = study_tables(name, specs, keys, results)
    write_parquet(paths.runs(name), tables.runs)
    write_parquet(paths.history(name), tables.history)
    write_array(paths.correct(name), tables.correct)
    write_json(paths.train_metrics(name), tables.accuracies)
    recorded = {key: result.recorded for key, result in zip(keys, results, strict=True) if result}
    write_run_dates(context.work.plans(name), recorded)
    outputs = [paths.runs(name), paths.history(name), paths.correct(name), paths.train_metrics(name)]
    with atomic_path(paths.trained_weights(name)) as temporary:
        temporary.write_bytes(_best_weights(runs, results, ledger) if study.keep_weights != "none" else b"")
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


def _best_weights(runs: Sequence[ResolvedRun], results: Sequence[RunResult | None], ledger: Ledger) -> bytes:
    """Return the weights file of the first seed of the variant with the highest mean top-1; empty if no run finished.

    A variant whose first seed diverged has no file; then the next best variant is used.
    """
    scores = scores_by_variant([run.spec for run in runs], results)
    seed = runs[0].spec.settings.seed
    files = {
        run_variant(run.spec): ledger.weights(run.fingerprint)
        for run in runs
        # Another study may have left weights of other seeds, which must not change this result.
        if run.key and run.spec.settings.seed == seed and ledger.weights(run.fingerprint).exists()
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
        plan=lambda context: launch_plan(study_recipe(context)),
        before=train_concurrently,
    )


if __name__ == "__main__":
    main()
