"""The runs of a study: its grid without those that cannot be trained, and the seeds that its looks still need."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.arms import WHOLE_ARMS
from pipeline.config.base import Duration
from pipeline.config.batch_sizes import CONTROL, TREATED, known_sizes
from pipeline.config.study import Study, TrainConfig
from pipeline.errors import InputError
from pipeline.runs.ledger import Ledger
from pipeline.stats.replicates import seed_differences
from pipeline.stats.runs import Setting
from pipeline.stats.sequential import SequentialDesign, seeds_needed
from pipeline.training.effective_settings import effective_settings
from pipeline.training.settings import DatasetInfo, GridPoint, TrainSettings


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run of a study, or the reason why it is skipped.

    Attributes:
        filter_network: network whose filter gives the arm; the study's first for `full`.
        learning_rate: as written in the study, before scaling.
        n_train: images of the arm.
        relabel_above: the study's bound, for the arm `relabeled`.
        n_relabeled: images with another label than the given one, once the labels are known.
        skip_reason: reason why the run is skipped; empty if it runs.
    """

    arm: str
    filter_network: str
    learning_rate: float
    n_train: int
    settings: TrainSettings
    relabel_above: float | None = None
    n_relabeled: int = 0
    skip_reason: str = ""

    @property
    def description(self) -> str:
        """Network, arm, batch size and seed: "small_cnn, filtered of resnet18, batch 64, seed 3"."""
        arm = self.arm if self.arm == "full" else f"{self.arm} of {self.filter_network}"
        return f"{self.settings.network}, {arm}, batch {self.settings.batch_size}, seed {self.settings.seed}"


def expand_grid(
    study: Study, train: TrainConfig, data: DatasetInfo, n_full: int, n_kept: Mapping[str, int]
) -> list[RunSpec]:
    """Return all runs of a study, arms innermost so that comparisons complete early.

    A batch larger than an arm of its comparison would repeat images within one batch. It is skipped for all arms, so
    that every run has a counterpart. Runs that only `equivalent_batch` requests come last.

    Args:
        n_full: training images.
        n_kept: filter network -> images that its filter keeps: the size of every arm but `full` and `relabeled`.

    Raises:
        InputError: a run that is not skipped cannot be trained, e.g. its warm-up is longer than the budget; or a run of
            `equivalent_batch` has the batch size of another run but other steps.
    """
    recipe = study.effective_recipe(train)
    sizes = {(arm, network): n_full if arm in WHOLE_ARMS else n_kept[network] for arm, network in study_arms(study)}
    smallest = min(sizes, key=lambda arm: sizes[arm])
    runs = []
    for point, (arm, network) in itertools.product(grid_points(study), sizes):
        size, too_large = sizes[arm, network], point.batch_size > sizes[smallest]
        settings = effective_settings(
            recipe,
            data,
            point,
            n_epoch=n_full if study.match == "steps" else size,
            budget=study.budget_at(point.batch_size),
            accuracy_every=study.accuracy_every,
            skipped=too_large,
        )
        reason = f"batch {point.batch_size} is larger than the {sizes[smallest]} images of arm {smallest[0]}"
        runs.append(
            RunSpec(
                arm=arm,
                filter_network=network,
                learning_rate=point.learning_rate,
                n_train=size,
                settings=settings,
                relabel_above=study.relabel_above if arm == "relabeled" else None,
                skip_reason=reason if too_large else "",
            )
        )
    return [*runs, *_equivalent_runs(study, train, data, runs, n_full)]


def _equivalent_runs(
    study: Study, train: TrainConfig, data: DatasetInfo, runs: list[RunSpec], n_full: int
) -> Iterator[RunSpec]:
    """Yield the runs of the filtered arm at smaller batches, with the steps and durations of the full arm's runs."""
    recipe, sizes = study.effective_recipe(train), study.equivalent_sizes(train)
    seen = {(*run_variant(run), run.settings.seed): run for run in runs}
    for control in [run for run in runs if run.arm == CONTROL and run.settings.batch_size in sizes]:
        large = control.settings
        settings = effective_settings(
            recipe,
            data,
            GridPoint(
                network=large.network,
                batch_size=sizes[large.batch_size],
                learning_rate=control.learning_rate,
                weight_decay=large.weight_decay,
                seed=large.seed,
            ),
            n_epoch=n_full,
            budget=Duration(steps=large.steps),
            skipped=True,  # the full arm's warm-up, which replaces this one, has been checked
        )
        settings = replace(
            settings,
            schedule_options=large.schedule_options,
            warmup_steps=large.warmup_steps,
            local_from_step=large.local_from_step,
            accuracy_steps=large.accuracy_steps,
        )
        for network in study.filter_networks:
            partner = next(run for run in runs if (run.arm, run.filter_network) == (TREATED, network))
            run = replace(partner, learning_rate=control.learning_rate, settings=settings,
                          skip_reason=control.skip_reason)  # fmt: skip
            other = seen.setdefault((*run_variant(run), settings.seed), run)
            if other is run:
                yield run
            elif other.settings != settings:
                raise InputError(
                    f"equivalent_batch: the run of {TREATED} at batch {settings.batch_size}, against {CONTROL} at "
                    f"{large.batch_size}, takes {settings.steps} steps, and another run of that batch size has "
                    f"{other.settings.steps}, or other durations; change gradient_scale or batch_sizes, or give the "
                    "budget and the warm-up in steps"
                )


def grid_points(study: Study) -> list[GridPoint]:
    """Return all points of a study's grid, seeds innermost.

    Raises:
        InputError: a batch size is `largest`.
    """
    lists = (study.models, known_sizes(study.batch_sizes), study.learning_rates, study.weight_decays, study.seeds)
    return [
        GridPoint(
            network=model, batch_size=batch_size, learning_rate=learning_rate, weight_decay=weight_decay, seed=seed
        )
        for model, batch_size, learning_rate, weight_decay, seed in itertools.product(*lists)
    ]


def study_arms(study: Study) -> list[tuple[str, str]]:
    """Return arm and filter network of every trained arm: `full` once, the others for each filter network."""
    return [
        (arm, network)
        for arm in study.arms
        for network in (study.filter_networks[:1] if arm == "full" else study.filter_networks)
    ]


RunVariant = tuple[str, str, str, int, float, float]
"""A run without its seed: model, arm, filter network, batch size, learning rate, weight decay."""


def run_variant(spec: RunSpec) -> RunVariant:
    """Return everything that identifies a run except its seed."""
    settings = spec.settings
    return (
        settings.network,
        spec.arm,
        spec.filter_network,
        settings.batch_size,
        spec.learning_rate,
        settings.weight_decay,
    )


def needed_seeds(
    specs: Sequence[RunSpec],
    keys: Sequence[str],
    ledger: Ledger,
    *,
    design: SequentialDesign | None,
    control: str,
    n_images: int,
) -> list[int]:
    """Return the seeds up to the next look, or up to the look that decided.

    Train the missing ones and call it again; the study is complete when nothing is missing. The answer depends on
    the results only, so that an interrupted study continues as an uninterrupted one. Runs of later seeds, which
    another study may have left in the ledger, change nothing.

    Args:
        specs: all runs of the study, for one replicate of the filter.
        keys: run keys of the runs; empty for skipped runs.
        design: of the looks; None if the study needs all its seeds.
        control: arm of the primary comparison.
        n_images: test images; every accuracy is a multiple of 1 / n_images.

    Returns:
        Ascending.
    """
    seeds = sorted({spec.settings.seed for spec in specs})
    if design is None:
        return seeds
    for look in design.looks:
        chosen = seeds[:look]
        taken = [(spec, key) for spec, key in zip(specs, keys, strict=True) if spec.settings.seed in chosen]
        if not all(ledger.has(key) for _, key in taken if key):
            return chosen
        top1 = {
            (_setting_for(spec), spec.arm, spec.settings.seed): ledger.get(key).top1 if key else None
            for spec, key in taken
        }
        if seeds_needed(design, seed_differences(top1, control), step=1 / n_images) <= look:
            return chosen
    return seeds


def _setting_for(spec: RunSpec) -> Setting:
    settings = spec.settings
    return Setting(settings.network, settings.batch_size, spec.learning_rate, settings.weight_decay)
