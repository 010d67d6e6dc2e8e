"""`python -m pipeline critical-batch --study NAME --after STEPS --images N`: up to which batch a larger one is as good.

Trains the study's first setting on its full arm, without the images flagged `val`, for some steps. From there it goes
on with batches 1, 2, 4, ... times as large, each for equally many images, and compares the loss on the images flagged
`val` over the study's seeds (Merrill et al. 2025, arXiv 2505.23971). The critical batch size is the largest batch whose
loss exceeds that of the study's batch by at most --tolerance. The command also prints the gradient noise scale of the
study's batch, if the recipe samples it (`noise_scale_steps`). It changes no file.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace

from pipeline import distributed
from pipeline.artifacts.prepared import load_prepared, prepared_digest
from pipeline.artifacts.recorded import check_with_note
from pipeline.artifacts.stage_inputs import stage_inputs
from pipeline.commands import check_minimums, command_parser, positive_float
from pipeline.config.batch_sizes import CONTROL
from pipeline.distributed import World
from pipeline.errors import InputError
from pipeline.live import StudyProgress
from pipeline.run_analysis.branched_runs import Branch, branch_images, branch_settings, compare_branches
from pipeline.runs.arm_rows import TrainRows
from pipeline.runs.execution import LoadedSplits, execute_run
from pipeline.runs.grid import RunSpec
from pipeline.stages.harness import StageContext, exit_codes, make_context
from pipeline.stages.study_runs import resolve_runs, study_recipe
from pipeline.stats.formatting import MISSING, aligned_lines, count, number
from pipeline.training.effective_settings import comm_config_from, launch_plan
from pipeline.training.run_key import machine_info
from pipeline.training.run_options import RunOptions
from pipeline.tuning.sources import load_splits, make_trial_data, val_rows

_FACTORS = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class BranchComparison:
    """The losses of all branches, and what follows from them.

    Attributes:
        after: steps before the branches.
        images: of each branch.
        tolerance: largest excess that counts as none, in nats.
        n_val: number of images on which the loss is measured.
        critical_batch: in images; None if it is larger than the largest batch tried.
        noise_scale: of each seed, in images; None where it is not sampled or cannot be estimated.
    """

    after: int
    images: int
    tolerance: float
    seeds: list[int]
    n_val: int
    branches: list[Branch]
    critical_batch: int | None
    noise_scale: list[float | None]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("critical-batch", __doc__, "params", "data", "work")
    parser.add_argument("--study", required=True, help="one of `studies` in the parameter file, with the arm full")
    parser.add_argument("--after", type=int, required=True, help="steps of the study's batch before the branches")
    parser.add_argument("--images", type=int, required=True, help="images of each branch, rounded up to whole batches")
    parser.add_argument(
        "--factors", type=int, nargs="+", default=list(_FACTORS), help="batch sizes, as multiples (default: 1 2 4 8)"
    )
    parser.add_argument(
        "--scaling", choices=["linear", "sqrt", "none"], default="linear",
        help="how the rate follows the batch (default: linear, as usual for SGD; sqrt for Adam and Muon)",
    )  # fmt: skip
    parser.add_argument("--tolerance", type=positive_float, default=0.01, help="largest excess in nats (default: 0.01)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print a line for each batch size, and the critical one.

    Returns:
        0. Exits with 2 on bad input and 130 after SIGINT, as a stage does.
    """
    arguments = make_parser().parse_args(argv)
    with exit_codes():
        check_minimums(arguments, after=1, images=1)
        if min(arguments.factors) < 1:
            raise InputError(f"--factors {min(arguments.factors)}: too small; give 1 or more")
        context = make_context("critical-batch", "study", arguments)
        with closing(context.log), distributed.join_process_group(launch_plan(study_recipe(context)).threads) as world:
            result = _measure(context, arguments, world)
        print(json.dumps(asdict(result), allow_nan=False) if arguments.json else "\n".join(text_lines(result)))
    return 0


def _measure(context: StageContext, arguments: argparse.Namespace, world: World) -> BranchComparison:
    specs, rows, splits = _inputs(context, world)
    first = specs[0].settings
    factors = sorted({1, *arguments.factors})
    images = branch_images(arguments.images, first.batch_size, factors)
    n_train = int(rows.mask.sum())
    if factors[-1] * first.batch_size > n_train:
        raise InputError(
            f"--factors {factors[-1]}: a batch of {factors[-1] * first.batch_size} is larger than the {n_train} images "
            "to train on; give smaller factors"
        )
    losses: dict[int, list[float | None]] = {factor: [] for factor in factors}
    noise_scale: list[float | None] = []
    scaling = None if arguments.scaling == "none" else arguments.scaling
    branches = [
        (factor, branch_settings(spec.settings, factor, after=arguments.after, images=images, scaling=scaling), spec)
        for factor in factors
        for spec in specs
    ]
    progress = StudyProgress([settings.batch_sizes.examples(settings.steps) for _, settings, _ in branches])
    for factor, settings, spec in branches:
        name = f"batch {settings.batch_size}, seed {settings.seed}"
        title = f"{progress.begin_run()}; {name}"
        loss, noise = _train(replace(spec, settings=settings, n_train=n_train), splits, rows, context, world, title)
        progress.end_run()
        context.log.info(f"{progress.where}; {name}: {'diverged' if loss is None else f'loss {loss:.4f}'}")
        if factor == 1:
            noise_scale.append(noise)
            if loss is None:
                raise InputError(f"--study {context.item}: batch {settings.batch_size} diverged; lower its rate")
        losses[factor].append(loss)
    compared, critical = compare_branches(losses, batch_size=first.batch_size, tolerance=arguments.tolerance)
    return BranchComparison(
        after=arguments.after,
        images=images,
        tolerance=arguments.tolerance,
        seeds=[spec.settings.seed for spec in specs],
        n_val=len(splits.test_labels),
        branches=compared,
        critical_batch=critical,
        noise_scale=noise_scale,
    )


def _inputs(context: StageContext, world: World) -> tuple[list[RunSpec], TrainRows, LoadedSplits]:
    """Return a run for each seed, the rows to train on, and the images, with those flagged `val` as the test split."""
    study = context.params.studies[context.item_name]
    if CONTROL not in study.arms:
        raise InputError(f"studies.{context.item}.arms: {list(study.arms)} lack full; give a study with it")
    check_with_note(context.data, stage_inputs("train", context.item, context.params, context.data), context.log.info)
    val = val_rows(context.data)
    if not val.any():
        raise InputError(
            f"{context.data.manifest('train')}: flags no image `val`, on which the loss is measured; set "
            "prepare.val_size, such as 0.1, and run `dvc repro`"
        )
    runs = resolve_runs(context, load_prepared(context.data, folder=context.image_folder), world)
    control_runs = [run for run in runs if run.spec.arm == CONTROL and not run.spec.skip_reason]
    if not control_runs:
        raise InputError(f"studies.{context.item}: every batch is larger than its arm; give a smaller one")
    # The seeds of the first setting: its runs differ in nothing else.
    first = replace(control_runs[0].spec.settings, seed=0)
    seeds = [run for run in control_runs if replace(run.spec.settings, seed=0) == first]
    rows = seeds[0].rows
    source = make_trial_data(
        context.data,
        image_folder=context.image_folder,
        digest=prepared_digest(context.data),
        machine=machine_info(world.device),
    )
    return [run.spec for run in seeds], replace(rows, mask=rows.mask & ~val), load_splits(source, world.device)


def _train(
    spec: RunSpec, splits: LoadedSplits, rows: TrainRows, context: StageContext, world: World, title: str
) -> tuple[float | None, float | None]:
    """Return the loss on the images flagged `val`, None if the run diverged, and the noise scale in images."""
    recipe = study_recipe(context)
    result = execute_run(
        spec, splits, rows, world=world, log=context.log, weights=None, eval_batch_size=recipe.eval_batch_size,
        options=RunOptions(title=title, micro_batch=recipe.micro_batch, comm=comm_config_from(recipe)),
    )  # fmt: skip
    noise = (result.critical_batch or {}).get("critical_batch")
    return result.loss, float(noise) if isinstance(noise, int | float) else None


def text_lines(result: BranchComparison) -> Iterator[str]:
    """Yield a table with a line for each batch size, and the critical one."""
    rows = [("batch", "loss", "excess", "95 % interval", "within")]
    for branch in result.branches:
        excess = branch.excess
        interval = MISSING if excess is None or excess.low is None else f"{number(excess.low)} to {number(excess.high)}"
        rows.append(
            (
                count(branch.batch_size),
                "diverged" if branch.mean_loss is None else number(branch.mean_loss),
                number(excess.mean if excess else None),
                interval,
                "yes" if branch.within else "no",
            )
        )
    yield from aligned_lines(rows)
    largest = result.branches[-1].batch_size
    found = f"above {count(largest)}" if result.critical_batch is None else f"{count(result.critical_batch)}"
    scales = [scale for scale in result.noise_scale if scale is not None]
    noise = f"; gradient noise scale: {', '.join(map(number, scales))}" if scales else ""
    yield f"critical batch size after {count(result.after)} steps: {found} images{noise}"
    yield (
        f"loss in nats on {count(result.n_val)} images flagged val, {len(result.seeds)} seeds, {count(result.images)} "
        f"images a branch; within: mean excess at most {number(result.tolerance)}"
    )
