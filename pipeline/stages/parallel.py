"""The harness of stages that train or extract: the same stage on one process or under torchrun."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import torch

from pipeline import distributed
from pipeline.distributed import LaunchPlan, World
from pipeline.energy import Energy, measure_energy, node_id, total_energy
from pipeline.paths import WorkPaths
from pipeline.stages.harness import (
    FILES_KEPT,
    StageContext,
    back_up_dvc_lock,
    check_inputs,
    exit_at_sigterm,
    exit_codes,
    exit_with_dvc,
    hold_lock,
    log_unrecorded,
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
    before: Callable[[StageContext, Sequence[str]], None] | None = None,
) -> None:
    """Run a stage's `body` on the number of processes that its plan requests, and exit the process.

    A process that torchrun started, on any number of nodes, becomes a rank of that run. Any other process starts
    torchrun if the plan requests more than one worker.

    Args:
        item: name of the argument of a matrix stage, `network` or `study`.
        plan: returns the requested processes for a context.
        before: called with the command line, in a process that torchrun did not start, before the others are started.

    Exit codes: as `run_stage`.
    """
    argv = sys.argv[1:]
    # torchrun ends the other ranks by SIGTERM when one has failed and said why: they print nothing.
    at_sigterm = nullcontext() if distributed.launched_by_torchrun() else exit_at_sigterm(FILES_KEPT)
    with exit_codes(), at_sigterm:
        arguments = parse_arguments(stage, item, argv)
        is_rank = distributed.launched_by_torchrun()
        if not is_rank:
            exit_with_dvc()
            back_up_dvc_lock(WorkPaths(root=arguments.work))
        silent = make_context(stage, item, arguments, silent=True)
        if not is_rank and before is not None:
            before(silent, argv)
        launch_plan = plan(silent)
        if not is_rank:
            n_workers = distributed.choose_workers(launch_plan.workers, launch_plan.valid_world_sizes)
            if n_workers > 1:
                sys.exit(distributed.launch(f"pipeline.stages.{stage}", argv, n_workers))
        choose_world_size = partial(distributed.participating_ranks, launch_plan.workers, launch_plan.valid_world_sizes)
        with (
            distributed.join_process_group(
                launch_plan.threads, choose_world_size, timeout_s=launch_plan.timeout_seconds
            ) as world,
            _energy_of_all_ranks(world) as joules,
        ):
            if not world.is_main:
                distributed.barrier()  # rank 0 checks the files that all read
                body(replace(silent, joules=joules), world)
                joules()  # a collective call: rank 0 records the total
                return
            context = replace(make_context(stage, item, arguments), joules=joules)
            with record_resources(context), hold_lock(context):
                unrecorded = check_inputs(context)
                distributed.barrier()
                body(context, world)
                log_unrecorded(context, unrecorded)
                if world.device.type == "cuda":
                    context.gpu_bytes.append(torch.cuda.max_memory_allocated(world.device))


@contextmanager
def _energy_of_all_ranks(world: World) -> Iterator[Callable[[], Energy]]:
    """Yield a meter of the energy since the block began, of all GPUs and all nodes' processors; all ranks call it."""
    nodes = distributed.all_gather_object(node_id())
    gpu = f"GPU-{torch.cuda.get_device_properties(world.device).uuid}" if world.device.type == "cuda" else None
    # Ranks of a node share its processors, so only the first one measures their energy.
    with measure_energy(gpu=gpu, node=world.rank == nodes.index(nodes[world.rank])) as meter:
        yield lambda: total_energy(distributed.all_gather_object(meter.read()))
