"""`python -m pipeline noise-scale --study NAME`: the gradient noise of full and filtered images at equal weights.

Prints the gradient noise scale tr(Sigma) / |G|^2 (McCandlish et al. 2018) of the images of the full and of the filtered
arm at the same weights, and their ratio with a 95 % interval. The law of the effective
batch says that the ratio is 1/s^2: that symmetric wrong labels multiply the mean gradient by s and leave its noise
about the same. The first part is exact only where predictions are uniform, so measure after several numbers of steps.

With --steps it trains the full arm for so many steps on a random half of the images, and measures on the other half,
which these weights have not seen. Without, it takes the weights that the study keeps (`keep_weights`), which have seen
all images of their arm: what they have memorized adds to the ratio. It changes no file.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline import distributed
from pipeline.artifacts.prepared import PreparedData, load_prepared
from pipeline.artifacts.recorded import check_with_note
from pipeline.artifacts.stage_inputs import stage_inputs, study_tables
from pipeline.artifacts.tables import read_parquet
from pipeline.commands import check_minimums, command_parser
from pipeline.config.batch_sizes import CONTROL, TREATED
from pipeline.distributed import World
from pipeline.errors import InputError, explain_out_of_memory
from pipeline.models.network import Network
from pipeline.run_analysis.noise_scale_ratio import ScaleRatio, measure_parts, noise_scale_of, scale_ratio
from pipeline.runs.arm_rows import TrainRows
from pipeline.runs.execution import LoadedSplits
from pipeline.runs.grid import RunSpec
from pipeline.runs.ledger import Ledger, has_network, load_network
from pipeline.stages.harness import StageContext, exit_codes, make_context
from pipeline.stages.study_runs import resolve_runs, study_recipe
from pipeline.stats.formatting import MISSING, aligned_lines, count, number
from pipeline.training.effective_settings import launch_plan
from pipeline.training.gradients import TrainLoss
from pipeline.training.loop import TrainData, train
from pipeline.training.run_options import RunOptions

_PARTS = 40
_MICRO_BATCH = 250
_HALF_SEED = 13  # separates the halves from other random choices under one seed


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The noise scales of both arms at one run's weights.

    Attributes:
        n_full, n_filtered: images measured.
        predicted: 1/s^2, if the study states s in `equivalent_batch`.
    """

    batch_size: int
    learning_rate: float
    weight_decay: float
    seed: int
    filter_network: str
    steps: int
    n_full: int
    n_filtered: int
    ratio: ScaleRatio
    predicted: float | None


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("noise-scale", __doc__, "params", "data", "work")
    parser.add_argument("--study", required=True, help="one of `studies` in the parameter file, with both arms")
    parser.add_argument(
        "--steps", type=int, help="train this many steps on one half of the images and measure on the other"
    )
    parser.add_argument(
        "--parts",
        type=int,
        default=_PARTS,
        help=f"disjoint random parts of each set whose gradients are compared, 3 or more (default: {_PARTS})",
    )
    parser.add_argument(
        "--micro-batch", type=int, default=_MICRO_BATCH, help=f"images per pass (default: {_MICRO_BATCH})"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the halves and the parts (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print a line for each run whose weights are measured.

    Returns:
        0. Exits with 2 on bad input and 130 after SIGINT, as a stage does.
    """
    arguments = make_parser().parse_args(argv)
    with exit_codes():
        check_minimums(arguments, steps=1, parts=3, micro_batch=1, seed=0)
        context = make_context("noise-scale", "study", arguments)
        with closing(context.log), distributed.join_process_group(launch_plan(study_recipe(context)).threads) as world:
            measured = []
            for row in _measurements(context, arguments, world):
                measured.append(row)
                where = f"batch {row.batch_size}, seed {row.seed}, filter of {row.filter_network}"
                context.log.info(f"{context.name}: {where}: ratio {number(row.ratio.ratio)}")
        if arguments.json:
            print(json.dumps([asdict(row) for row in measured], allow_nan=False))
        else:
            print("\n".join(text_lines(measured)))
    return 0


def _measurements(context: StageContext, arguments: argparse.Namespace, world: World) -> Iterator[Measurement]:
    study = context.params.studies[context.item_name]
    if missing := {CONTROL, TREATED} - set(study.arms):
        raise InputError(
            f"studies.{context.item}.arms: {list(study.arms)} lack {min(missing)}; give a study with full and filtered"
        )
    check_with_note(context.data, stage_inputs("train", context.item, context.params, context.data), context.log.info)
    data = load_prepared(context.data, folder=context.image_folder)
    runs = resolve_runs(context, data, world)
    at = {(run.spec.arm, run.spec.filter_network): run.rows for run in runs}
    specs = [run.spec for run in runs]
    splits = LoadedSplits(
        train_images=data.train.source,
        test_images=data.test.source,
        test_labels=data.test.labels,
        class_names=data.class_names,
    )
    scale = study.equivalent_batch.gradient_scale if study.equivalent_batch else None
    networks = _kept_networks(context, specs, data, world) if arguments.steps is None else None
    for spec, model, unseen in networks or _brief_networks(context, specs, splits, data, world, arguments):
        for network in study.filter_networks:
            sets = at[CONTROL, study.filter_network], at[TREATED, network]
            sizes, ratio = _ratio(spec, model, unseen, sets, splits, world, arguments)
            yield Measurement(
                batch_size=spec.settings.batch_size,
                learning_rate=spec.learning_rate,
                weight_decay=spec.settings.weight_decay,
                seed=spec.settings.seed,
                filter_network=network,
                steps=spec.settings.steps,
                n_full=sizes[0],
                n_filtered=sizes[1],
                ratio=ratio,
                predicted=None if scale is None else scale**-2,
            )


Networks = Iterator[tuple[RunSpec, Network, NDArray[np.bool_] | np.bool_]]
"""Runs of the full arm, their networks, and (N,) bool: the images to measure on; or True: all."""


def _kept_networks(context: StageContext, specs: Sequence[RunSpec], data: PreparedData, world: World) -> Networks:
    """Yield the finished runs of the full arm whose weights are kept."""
    check_with_note(context.data, [study_tables(context.item_name, context.data)], context.log.info)
    ledger, by_run = Ledger(context.work.ledger), {_identity(spec): spec for spec in specs if spec.arm == CONTROL}
    path, found = context.data.runs(context.item_name), False
    for row in read_parquet(path).to_pylist():
        if row["arm"] != CONTROL or not has_network(row, ledger):
            continue
        identity = tuple(row[name] for name in ("model", "batch_size", "learning_rate", "weight_decay", "seed"))
        if identity not in by_run:
            raise InputError(f"{path}: has a run that is not in the study of params.yaml; run `dvc repro`")
        found = True
        trained = load_network(row, ledger, data, study=context.item_name)
        yield by_run[identity], trained.model.to(world.device), np.bool_(True)
    if not found:
        raise InputError(
            f"{context.work.ledger}: has no weights of the full arm of study {context.item}; run `dvc repro` here, "
            "or give --steps"
        )


def _identity(spec: RunSpec) -> tuple[Any, ...]:
    settings = spec.settings
    return settings.network, settings.batch_size, spec.learning_rate, settings.weight_decay, settings.seed


def _brief_networks(
    context: StageContext,
    specs: Sequence[RunSpec],
    splits: LoadedSplits,
    data: PreparedData,
    world: World,
    arguments: argparse.Namespace,
) -> Networks:
    """Train each setting of the full arm, with its first seed, for a few steps on half of the images."""
    labels = data.train.labels
    half = np.random.default_rng([arguments.seed, _HALF_SEED]).random(len(labels)) < 0.5
    first = [spec for spec in specs if spec.arm == CONTROL and not spec.skip_reason]
    for spec in [spec for spec in first if spec.settings.seed == first[0].settings.seed]:
        settings = replace(
            spec.settings,
            steps=arguments.steps,
            warmup_steps=min(spec.settings.warmup_steps, arguments.steps),
            schedule="constant",
            schedule_options={},
            batch_stages=(),
            accuracy_steps=None,
            accuracy_examples=None,
            noise_scale_steps=None,
        )
        if settings.batch_size > half.sum():
            raise InputError(
                f"--steps: batch {settings.batch_size} is larger than half of the images; leave out --steps"
            )
        images = splits.on_device(settings, training=True, device=world.device)
        run = train(
            settings, TrainData(images, torch.from_numpy(labels).to(world.device), half), world=world,
            log=context.log, options=RunOptions(title=f"{context.name}: batch {settings.batch_size}"),
        )  # fmt: skip
        if run.diverged:
            raise InputError(f"--steps {arguments.steps}: batch {settings.batch_size} diverged; give fewer steps")
        yield replace(spec, settings=settings), run.model, ~half


def _ratio(
    spec: RunSpec,
    model: Network,
    unseen: NDArray[np.bool_] | np.bool_,
    sets: tuple[TrainRows, TrainRows],
    splits: LoadedSplits,
    world: World,
    arguments: argparse.Namespace,
) -> tuple[list[int], ScaleRatio]:
    """Return the number of images of both sets, and the ratio of full to filtered."""
    images = splits.on_device(spec.settings, training=True, device=world.device)
    sizes, norms = [], []
    for trained in sets:
        rows = np.flatnonzero(trained.mask & unseen)
        if len(rows) < 2 * arguments.parts:
            raise InputError(f"--parts {arguments.parts}: there are {len(rows)} images; give {len(rows) // 2} or fewer")
        order = np.random.default_rng(arguments.seed).permutation(rows)
        train_loss = TrainLoss(
            images=images,
            labels=torch.from_numpy(trained.labels).to(world.device),
            label_smoothing=spec.settings.label_smoothing,
        )
        size = arguments.micro_batch
        with explain_out_of_memory(f"--micro-batch {size}: a pass of {size} images does not fit the memory; lower it"):
            norms.append(measure_parts(model, train_loss, order, parts=arguments.parts, batch_size=size))
        sizes.append(len(order) // arguments.parts * arguments.parts)
    return sizes, scale_ratio(*norms)


def text_lines(measured: Sequence[Measurement]) -> Iterator[str]:
    """Yield a table with a line for each measurement, and what its columns mean."""
    headers = ("batch", "lr", "seed", "filter", "steps", "full", "filtered", "ratio", "95 % interval", "law")
    rows = [
        (
            count(row.batch_size),
            f"{row.learning_rate:g}",
            str(row.seed),
            row.filter_network,
            count(row.steps),
            number(noise_scale_of(row.ratio.numerator)),
            number(noise_scale_of(row.ratio.denominator)),
            number(row.ratio.ratio),
            MISSING if row.ratio.low is None else f"{number(row.ratio.low)} to {number(row.ratio.high)}",
            number(row.predicted),
        )
        for row in measured
    ]
    yield from aligned_lines([headers, *rows])
    for reason in dict.fromkeys(row.ratio.reason for row in measured if row.ratio.reason):
        yield f"no ratio or no interval: {reason}"
    sizes: Mapping[tuple[int, int], None] = dict.fromkeys((row.n_full, row.n_filtered) for row in measured)
    measured_on = "; ".join(f"{count(full)} and {count(filtered)}" for full, filtered in sizes)
    yield f"noise scales in images, of full and filtered at equal weights, on {measured_on} images; law: 1/s^2"
