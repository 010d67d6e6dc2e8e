"""`python -m pipeline diagnose --study NAME`: find what bounds a training step.

Runs steps of one of the study's runs on as many processes as the study trains on. It alternates three variants:
unchanged, without exchange of gradients, and with synthetic images. Nothing is evaluated, saved or recorded. Prints
whether compute, communication, input or synchronization bounds a step, and what to change, or that the measurements
vary too much to decide. You can also start the processes by torchrun, on any number of nodes.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from pipeline import distributed
from pipeline.commands import command_parser, positive_float
from pipeline.commands.diagnose.bottleneck import diagnose, diagnosis_lines
from pipeline.commands.diagnose.timing import ROUNDS, Training, measure, one_rank_share, step_seconds, steps_in, trace
from pipeline.config.batch_sizes import known_sizes
from pipeline.distributed import World
from pipeline.errors import InputError
from pipeline.run_log import RunLog, stderr_log
from pipeline.stages.harness import StageContext, exit_codes, make_context
from pipeline.stages.study_runs import load_study, resolve_runs
from pipeline.training.effective_settings import comm_config_from, launch_plan
from pipeline.training.evaluation import load_images

_MODULE = "pipeline.commands.diagnose.command"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("diagnose", __doc__, "params", "data", "work")
    parser.add_argument("--study", required=True, help="one of `studies` in the parameter file")
    parser.add_argument("--batch-size", type=int, help="one of the study's batch sizes (default: the first)")
    parser.add_argument("--seconds", type=positive_float, default=20.0, help="approximate training time (default: 20)")
    parser.add_argument("--trace", type=Path, metavar="FOLDER", help="write a trace of one step of each rank here")
    # For the ranks; the launching process sets it.
    parser.add_argument("--single-rank-seconds", type=float, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Measure, and print the report.

    Returns:
        Exit code of the processes.

    Raises:
        InputError: the parameter file is bad or lacks the study, or data are missing.
    """
    arguments = make_parser().parse_args(argv)
    context = make_context("train", "study", arguments, silent=True)
    plan = launch_plan(context.params.studies[arguments.study].effective_recipe(context.params.train))
    if (
        not distributed.launched_by_torchrun()
        and (count := distributed.choose_workers(plan.workers, plan.valid_world_sizes)) > 1
    ):
        with distributed.join_process_group(distributed.threads_per_process(plan.threads, count)) as world:
            single_rank_s = _single_rank_seconds(context, world, arguments, count)
        # The ranks need the memory of all GPUs, also that of this process's GPU.
        torch.cuda.empty_cache()
        return distributed.launch(_MODULE, [*argv, "--single-rank-seconds", str(single_rank_s)], count)
    participating = partial(distributed.participating_ranks, plan.workers, plan.valid_world_sizes)
    with distributed.join_process_group(plan.threads, participating) as world:
        _report(context, world, arguments)
    return 0


def _single_rank_seconds(context: StageContext, world: World, arguments: argparse.Namespace, world_size: int) -> float:
    """Return the mean seconds of a step of one of `world_size` ranks while the others do nothing."""
    training = one_rank_share(_training(context, world, arguments.batch_size), world_size)
    return float(np.mean(step_seconds(training, steps_in(training, arguments.seconds / 10))))


def _report(context: StageContext, world: World, arguments: argparse.Namespace) -> None:
    training = _training(context, world, arguments.batch_size)
    log = stderr_log(None) if world.is_main else RunLog.silent()
    with log.progress("diagnose", ROUNDS, "rounds") as progress:
        times = measure(training, arguments.seconds, progress.update)
    settings = training.settings
    if world.is_main:
        processes = "1 process" if world.size == 1 else f"{world.size} processes"
        print(
            f"{arguments.study}: {settings.network}, batch {settings.batch_size} on {processes}, {world.device.type}, "
            f"{torch.get_num_threads()} threads each; {times.full.shape[0]} rounds of {times.full.shape[2]} steps"
        )
        if settings.local_from_step is not None:
            print(f"post-local SGD: steps of its local phase, averaged every {settings.local_period} steps")
        single_rank_s = arguments.single_rank_seconds
        print(
            "\n".join(
                diagnosis_lines(
                    diagnose(times), times, batch_size=settings.batch_size, single_rank_seconds=single_rank_s
                )
            )
        )
    if arguments.trace:
        trace(training, arguments.trace / f"{arguments.study}.rank{world.rank}.json")
        if world.is_main:
            print(f"traces: {arguments.trace}, one file for each rank; open them with https://ui.perfetto.dev")


def _training(context: StageContext, world: World, batch_size: int | None) -> Training:
    """Return the study's first run, or its first run of this batch size.

    Raises:
        InputError: the study has no such run, or skips it.
    """
    context, data = load_study(context, world)
    runs = resolve_runs(context, data, world)
    sizes = [*known_sizes(context.params.studies[context.item_name].batch_sizes)]
    if batch_size is not None and batch_size not in sizes:
        raise InputError(f"--batch-size {batch_size}: not a batch size of study {context.item}; give one of {sizes}")
    candidates = [run for run in runs if batch_size in (None, run.spec.settings.batch_size)]
    trainable = [run for run in candidates if not run.spec.skip_reason]
    if not trainable:
        reason = candidates[0].spec.skip_reason
        raise InputError(f"--study {context.item}: {reason}, so there is nothing to run; lower batch_sizes")
    settings, rows = trainable[0].spec.settings, trainable[0].rows
    recipe = context.params.studies[context.item_name].effective_recipe(context.params.train)
    return Training(
        settings=settings,
        images=load_images(data.train.source, settings, training=True, device=world.device),
        labels=torch.from_numpy(rows.labels).to(world.device),
        train_mask=rows.mask,
        world=world,
        micro_batch=recipe.micro_batch,
        comm=comm_config_from(recipe),
    )


if __name__ == "__main__":
    with exit_codes():
        sys.exit(main(sys.argv[1:]))
