"""The harness of stages that train or embed: the same stage on one process or on many."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from pipeline import distributed
from pipeline.distributed import LaunchPlan, World
from pipeline.energy import Energy, measure_energy, node_id, total_energy
from pipeline.paths import WorkPaths
from pipeline.stages.harness import (
    StageContext,
    back_up_dvc_lock,
    exit_codes,
    exit_with_dvc,
    hold_lock,
    make_context,
    parse_arguments,
    record_resources,
)


def run_parallel_stage(
    stage: str,
    body: Callable[[StageContext, World], None],
    *,
    item: str,
    plan: Callable[[StageContext], LaunchPlan],
    argv: Sequence[str] | None = None,
) -> None:
    """Run `body` on as many processes as `plan(context)` says and exit.

    Under torchrun (one's own, on any number of nodes) it is a rank of that run. Otherwise it
    starts torchrun itself where more than one worker is wanted.

    Exit codes: as `run_stage`.
    """
    argv = sys.argv[1:] if argv is None else argv
    with exit_codes():
        arguments = parse_arguments(stage, item, argv)
        if not distributed.launched_by_torchrun():
            exit_with_dvc()
            back_up_dvc_lock(WorkPaths(root=arguments.work))
            here = plan(make_context(stage, item, arguments, silent=True))
            if (count := distributed.choose_workers(here.workers, here.valid_world_sizes)) > 1:
                sys.exit(distributed.launch(f"pipeline.stages.{stage}", argv, count))
        quiet = make_context(stage, item, arguments, silent=True)
        wanted = plan(quiet)
        choose_world_size = partial(distributed.participating_ranks, wanted.workers, wanted.valid_world_sizes)
        with (
            distributed.join_process_group(wanted.threads, choose_world_size) as ranks,
            _metering_ranks(ranks) as joules,
        ):
            if not ranks.is_main:
                body(replace(quiet, joules=joules), ranks)
                joules()  # for rank 0's record
                return
            context = replace(make_context(stage, item, arguments), joules=joules)
            with record_resources(context), hold_lock(context):
                body(context, ranks)
                if ranks.device.type == "cuda":
                    context.gpu_bytes.append(torch.cuda.max_memory_allocated(ranks.device))


@contextmanager
def _metering_ranks(ranks: World) -> Iterator[Callable[[], Energy]]:
    """The energy since the block began, of every rank's GPU and every node's processors; all ranks ask together."""
    nodes = distributed.all_gather(node_id())
    gpu = f"GPU-{torch.cuda.get_device_properties(ranks.device).uuid}" if ranks.device.type == "cuda" else None
    # The first rank of a node counts what all of its ranks share.
    with measure_energy(gpu=gpu, node=ranks.rank == nodes.index(nodes[ranks.rank])) as meter:
        yield lambda: total_energy(distributed.all_gather(meter.read()))
