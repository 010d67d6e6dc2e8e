"""The runs of a study with the images that each trains on and their keys, and which of them are left to train."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from pipeline import distributed
from pipeline.artifacts.prepared import PreparedData, load_prepared, prepared_digests
from pipeline.config.study import KeepWeights, TrainConfig
from pipeline.distributed import World
from pipeline.runs.arm_rows import TrainRows, check_replicates_differ, read_decisions, train_rows
from pipeline.runs.grid import RunSpec, expand_grid, needed_seeds
from pipeline.runs.largest_batch import with_largest_batch
from pipeline.runs.ledger import Ledger
from pipeline.stages.harness import StageContext
from pipeline.stats.sequential import SequentialDesign
from pipeline.training.run_key import RunKey, run_key
from pipeline.training.settings import DatasetInfo


@dataclass(frozen=True, kw_only=True)
class ResolvedRun:
    """A run of a study with its data and its name in the ledger.

    Attributes:
        spec: the settings, or the reason why the run is skipped.
        rows: the images and labels that it trains on.
        key: None for a skipped run.
        fingerprint: of the key, the name in the ledger; empty for a skipped run.
    """

    spec: RunSpec
    rows: TrainRows
    key: RunKey | None
    fingerprint: str


def load_study(context: StageContext, world: World) -> tuple[StageContext, PreparedData]:
    """Return the images, and the context with a number for `largest` in the study's batch sizes; all ranks call it."""
    data = load_prepared(context.data, folder=context.image_folder)
    params = with_largest_batch(
        context.params, context.item_name, data, paths=context.data, work=context.work, world=world,
        log=context.log.info,
    )  # fmt: skip
    return replace(context, params=params), data


def study_recipe(context: StageContext) -> TrainConfig:
    """Return the recipe of `context.item`, a study."""
    return context.params.studies[context.item_name].effective_recipe(context.params.train)


def resolve_runs(
    context: StageContext, data: PreparedData, world: World, *, threads: int | None = None
) -> list[ResolvedRun]:
    """Return the runs of a study, in the order of its grid.

    Args:
        threads: CPU threads of each training process; None: as many as this process has.

    Raises:
        InputError: a filter's table does not fit the data, two replicates of the filter keep the same images, or a run
            cannot be trained, see `expand_grid`.
    """
    study = context.params.studies[context.item_name]
    labels, needs_filter = data.train.labels, set(study.arms) != {"full"}
    decisions = {
        network: read_decisions(context.data, data, network, suggestions=study.relabel_above is not None)
        for network in study.filter_networks
        if needs_filter
    }
    keep = {network: decision.keep for network, decision in decisions.items()}
    check_replicates_differ(keep, context.item_name)
    summary = DatasetInfo(n_classes=len(data.class_names), image_size=data.image_size, mean=data.mean, std=data.std)
    n_kept = {network: int(kept.sum()) for network, kept in keep.items()}
    data_digest, content = distributed.broadcast_object(prepared_digests(context.data) if world.is_main else ("", ""))
    runs = []
    for spec in expand_grid(study, context.params.train, summary, len(labels), n_kept):
        rows = train_rows(spec, labels, decisions)
        relabeled = np.flatnonzero(rows.changed(labels))
        key = None
        if not spec.skip_reason:
            key = run_key(
                spec.settings, rows.mask, data_digest=data_digest, data_content=content, device=world.device,
                threads=threads or torch.get_num_threads(),
                relabeled=dict(zip(relabeled.tolist(), rows.labels[relabeled].tolist(), strict=True)),
            )  # fmt: skip
        spec = replace(spec, n_relabeled=len(relabeled))
        runs.append(ResolvedRun(spec=spec, rows=rows, key=key, fingerprint=key.fingerprint if key else ""))
    return runs


def next_runs(context: StageContext, runs: Sequence[ResolvedRun], ledger: Ledger, n_test: int) -> list[int]:
    """Return the indices of the missing runs before the next look, or of all without looks; empty when complete."""
    keep = context.params.studies[context.item_name].keep_weights
    used = set(used_runs(context, runs, ledger, n_test))
    return [index for index in missing_runs(runs, ledger, keep) if index in used]


def used_runs(context: StageContext, runs: Sequence[ResolvedRun], ledger: Ledger, n_test: int) -> list[int]:
    """Return the indices of the runs with seeds up to the next look, or the look that decided; all without looks."""
    study, report = context.params.studies[context.item_name], context.params.report
    design = None
    if study.looks:
        design = SequentialDesign(looks=study.looks, margin=report.margin / 100, alpha=report.alpha)
    seeds = needed_seeds(
        [run.spec for run in runs], [run.fingerprint for run in runs], ledger,
        design=design, control=report.primary, n_images=n_test,
    )  # fmt: skip
    return [index for index, run in enumerate(runs) if run.spec.settings.seed in seeds]


def missing_runs(runs: Sequence[ResolvedRun], ledger: Ledger, keep: KeepWeights) -> list[int]:
    """Return the indices of the runs to train; runs with equal keys, also of different arms, are trained once."""
    first = {run.fingerprint: index for index, run in reversed(list(enumerate(runs))) if run.key}
    return [
        index
        for key, index in sorted(first.items(), key=lambda item: item[1])
        if not ledger.has(key, with_weights=keeps_weights(runs[index], runs, keep))
    ]


def keeps_weights(run: ResolvedRun, runs: Sequence[ResolvedRun], keep: KeepWeights) -> bool:
    """Return whether a run's weights are saved; one seed suffices for publishing and takes less of the disk."""
    return keep == "all" or (keep == "first_seed" and run.spec.settings.seed == runs[0].spec.settings.seed)
