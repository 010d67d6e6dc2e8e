"""Time single-rank steps, all-reduces and data-parallel steps for `simulator_error`; started by torchrun.

    torchrun --standalone --nproc-per-node=2 -m benchmarks.simulator_timing --out FILE.json ...

Rank 0 writes `Timings` as JSON. Each rank has one thread and runs SGD in float32 on random images.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import get_model

from benchmarks.all_reduce_times import BYTES, all_reduce_time
from pipeline import distributed
from pipeline.artifacts.files import write_json
from pipeline.distributed import CommConfig, World
from pipeline.simulator import AllReduceTiming, Job
from pipeline.simulator.job import measured_job

CLASSES = 10
MIB = 2**20
ALONE, WITHOUT = "alone", "without"
_WARM_UP = 3  # DistributedDataParallel rebuilds its buckets after the first step
_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class StepTimings:
    """Steps with `local_batch` images per rank.

    Attributes:
        way: ALONE for rank 0 while the others wait; WITHOUT for all ranks without exchange; a number of MiB for the
            trainer's DistributedDataParallel with buckets of this size.
        seconds: (ranks, turns); all ranks start a step together.
    """

    local_batch: int
    way: str | int
    seconds: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Timings:
    """The timings of one launch.

    Attributes:
        jobs: rank 0's steps by part, without exchange, while all ranks run theirs; one per round and local batch.
        steps: by local batch and way; each turn ran all of them in a new random order.
    """

    ranks: int
    jobs: tuple[Job, ...]
    all_reduces: tuple[AllReduceTiming, ...]
    steps: tuple[StepTimings, ...]


def timings_of(tree: Mapping[str, Any]) -> Timings:
    """Parse the JSON of rank 0."""
    return Timings(
        ranks=tree["ranks"],
        jobs=tuple(map(_job, tree["jobs"])),
        all_reduces=tuple(AllReduceTiming(*point) for point in tree["all_reduces"]),
        steps=tuple(
            StepTimings(**{**steps, "seconds": tuple(map(tuple, steps["seconds"]))}) for steps in tree["steps"]
        ),
    )


def _job(tree: Mapping[str, Any]) -> Job:
    layers = {key: tuple(tree[key]) for key in ("layer_bytes", "backward_seconds")}
    return Job(**{**tree, **layers})


def rank_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line, which `simulator_error` writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", required=True)
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--local-batches", type=int, nargs="+", required=True)
    parser.add_argument("--buckets-mib", type=int, nargs="+", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(argv)


def time_all(arguments: argparse.Namespace) -> None:
    """Measure on every rank; rank 0 writes the file."""
    with distributed.join_process_group(1) as world:
        network = {"image_size": arguments.image_size, "n_classes": CLASSES}
        jobs, all_reduces = [], []
        for _ in range(arguments.rounds):
            for batch in arguments.local_batches:
                distributed.barrier()
                jobs.append(measured_job(arguments.network, **network, local_batch=batch, device=world.device))
            all_reduces += [all_reduce_time(n_bytes, world, _REPEATS) for n_bytes in BYTES]
        steps = _in_turn(arguments, world)
        if world.is_main:
            timings = Timings(ranks=world.size, jobs=tuple(jobs), all_reduces=tuple(all_reduces), steps=steps)
            write_json(arguments.out, asdict(timings))


def _in_turn(arguments: argparse.Namespace, world: World) -> tuple[StepTimings, ...]:
    """Time all steps in turn, each turn in a new random order.

    The speed of the machine drifts by a quarter within a minute, and the order of steps also matters.
    """
    works: dict[tuple[int, str | int], Callable[[], None]] = {}
    for batch in arguments.local_batches:
        works[batch, ALONE] = _step(arguments, batch, lambda model: model) if world.is_main else lambda: None
        works[batch, WITHOUT] = _step(arguments, batch, lambda model: model)
        for mib in arguments.buckets_mib:
            wrap = partial(distributed.data_parallel, device=world.device, comm=CommConfig(bucket_mib=mib))
            works[batch, mib] = _step(arguments, batch, wrap)
    seconds: dict[tuple[int, str | int], list[float]] = {setting: [] for setting in works}
    # The same on all ranks.
    rng = np.random.default_rng(0)
    for _ in range(_WARM_UP + arguments.turns):
        for index in rng.permutation(len(works)):
            setting = [*works][index]
            seconds[setting].append(_seconds(works[setting]))
    return tuple(
        StepTimings(
            local_batch=batch,
            way=way,
            # With ALONE the other ranks do nothing.
            seconds=tuple(map(tuple, distributed.all_gather_object(taken[_WARM_UP:])[: 1 if way == ALONE else None])),
        )
        for (batch, way), taken in seconds.items()
    )


def _step(
    arguments: argparse.Namespace, local_batch: int, wrap: Callable[[nn.Module], nn.Module]
) -> Callable[[], None]:
    plain = get_model(arguments.network, weights=None, num_classes=CLASSES)
    model = wrap(plain.to(memory_format=torch.channels_last))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    side = arguments.image_size
    images = torch.randn(local_batch, 3, side, side).to(memory_format=torch.channels_last)
    labels = torch.zeros(local_batch, dtype=torch.int64)

    def step() -> None:
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _seconds(work: Callable[[], None]) -> float:
    distributed.barrier()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    time_all(rank_arguments())
