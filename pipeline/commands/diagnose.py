"""`python -m pipeline diagnose --study NAME`: where the time of a training step goes.

Runs real steps of one of the study's cells, on as many processes as the study trains on, three ways in turn: as they
are, without exchanging gradients, and with synthetic images. Nothing is evaluated, saved or recorded. Says which of
compute, communication, input or synchronization bounds a step, and what to do about it, or that the spread of the
measurements does not tell. Its own torchrun may start the processes, on any number of nodes.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from pipeline import distributed
from pipeline.artifacts.prepared import load_prepared
from pipeline.commands import command_parser
from pipeline.commands.diagnosing.bottleneck import diagnose
from pipeline.commands.diagnosing.report import diagnosis_lines
from pipeline.commands.diagnosing.timing import Training, measure, one_rank_share, step_seconds, steps_in, trace
from pipeline.distributed import World
from pipeline.errors import InputError
from pipeline.stages.harness import StageContext, exit_codes, make_context
from pipeline.stages.train import resolve_runs
from pipeline.training.evaluation import load_images
from pipeline.training.settings import comm_config_from, launch_plan

_MODULE = "pipeline.commands.diagnose"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("diagnose", __doc__, "params", "data", "work")
    parser.add_argument("--study", required=True)
    parser.add_argument("--batch-size", type=int, help="of the study's batch sizes (default: its first)")
    parser.add_argument("--seconds", type=_seconds, default=20.0, help="of training, roughly (default: 20)")
    parser.add_argument("--trace", type=Path, metavar="FOLDER", help="write a trace of one step of each rank here")
    # The launching process passes it on.
    parser.add_argument("--single-rank-seconds", type=float, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str]) -> int:
    """Raises InputError for a bad parameter file, a study it does not have, or data that are not there."""
    arguments = make_parser().parse_args(argv)
    context = make_context("train", "study", arguments, silent=True)
    plan = launch_plan(context.params.studies[arguments.study].effective_recipe(context.params.train))
    if (
        not distributed.launched_by_torchrun()
        and (count := distributed.choose_workers(plan.workers, plan.valid_world_sizes)) > 1
    ):
        with distributed.join_process_group(distributed.threads_per_process(plan.threads, count)) as ranks:
            alone = _single_rank_seconds(context, ranks, arguments, count)
        # The ranks need the memory of all GPUs; those of this process's first one have been freed by now.
        torch.cuda.empty_cache()
        return distributed.launch(_MODULE, [*argv, "--single-rank-seconds", str(alone)], count)
    choose_world_size = partial(distributed.participating_ranks, plan.workers, plan.valid_world_sizes)
    with distributed.join_process_group(plan.threads, choose_world_size) as ranks:
        _report(context, ranks, arguments)
    return 0


def _single_rank_seconds(context: StageContext, ranks: World, arguments: argparse.Namespace, count: int) -> float:
    """Seconds of a step of one of `count` ranks when the others do nothing; the mean, as of theirs."""
    training = one_rank_share(_training(context, ranks, arguments.batch_size), count)
    return float(np.mean(step_seconds(training, steps_in(training, arguments.seconds / 10))))


def _seconds(text: str) -> float:
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _report(context: StageContext, ranks: World, arguments: argparse.Namespace) -> None:
    training = _training(context, ranks, arguments.batch_size)
    times = measure(training, arguments.seconds)
    settings = training.settings
    if ranks.is_main:
        processes = "1 process" if ranks.size == 1 else f"{ranks.size} processes"
        print(
            f"{arguments.study}: {settings.network}, batch {settings.batch_size} on {processes}, {ranks.device.type}, "
            f"{torch.get_num_threads()} threads each; {times.full.shape[0]} rounds of {times.full.shape[2]} steps"
        )
        if settings.local_from_step is not None:
            print(f"post-local SGD: its local phase, averaged every {settings.local_period} steps; not those before it")
        alone = arguments.single_rank_seconds
        print(
            "\n".join(
                diagnosis_lines(diagnose(times), times, batch_size=settings.batch_size, single_rank_seconds=alone)
            )
        )
    if arguments.trace:
        trace(training, arguments.trace / f"{arguments.study}.rank{ranks.rank}.json")
        if ranks.is_main:
            print(f"traces: {arguments.trace}, a file for each rank, for https://ui.perfetto.dev")


def _training(context: StageContext, ranks: World, batch_size: int | None) -> Training:
    """The study's first cell, or its first of this batch size.

    Raises:
        InputError: the study has no such cell, or skips it.
    """
    data = load_prepared(context.data, folder=context.image_folder)
    cells, members, _ = resolve_runs(context, data, ranks)
    sizes = list(context.params.studies[str(context.item)].batch_sizes)
    if batch_size is not None and batch_size not in sizes:
        raise InputError(f"--batch-size {batch_size}: not of study {context.item}; it has {sizes}")
    asked = [i for i, cell in enumerate(cells) if batch_size in (None, cell.settings.batch_size)]
    fitting = [i for i in asked if not cells[i].skip_reason]
    if not fitting:
        reason = cells[asked[0]].skip_reason
        raise InputError(f"--study {context.item}: {reason}, so there is nothing to run; lower batch_sizes")
    settings = cells[fitting[0]].settings
    recipe = context.params.studies[str(context.item)].effective_recipe(context.params.train)
    return Training(
        settings=settings,
        images=load_images(data.train.source, settings, training=True, device=ranks.device),
        labels=torch.from_numpy(data.train.labels).to(ranks.device),
        members=members[fitting[0]],
        ranks=ranks,
        micro_batch=recipe.micro_batch,
        comm=comm_config_from(recipe),
    )


if __name__ == "__main__":
    with exit_codes():
        sys.exit(main(sys.argv[1:]))
