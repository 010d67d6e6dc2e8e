"""What `simulator_error` measures: a rank's own steps, all-reduces, and data-parallel steps; by torchrun.

    torchrun --standalone --nproc-per-node=2 -m benchmarks.simulator_timing --out FILE.json ...

Rank 0 writes `Timings` as JSON. One thread a rank; SGD in float32 on random images.
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
from numpy.typing import NDArray
from torch import nn
from torchvision.models import get_model

from benchmarks.all_reduce_times import BYTES, all_reduce_time
from pipeline import distributed
from pipeline.artifacts.json_file import write_json
from pipeline.commands.simulating.network_job import measured_job
from pipeline.costmodel import Job, Measurement
from pipeline.distributed import Ranks, Transport

CLASSES = 10
MIB = 2**20
_WARM_UP = 3  # DistributedDataParallel orders its buckets anew after the first step


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """A step of `local_batch` images a rank, wrapped as by the trainer with buckets of `bucket_mib`.

    Attributes:
        ratios: over the same step without exchange seconds before, both until the slowest rank is done; of each pair.
    """

    local_batch: int
    bucket_mib: int
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Their median."""
        return float(np.median(self.ratios))


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Steps without exchange that all ranks begin together: the slowest rank's over rank 0's, by their medians."""

    local_batch: int
    factor: float


@dataclass(frozen=True, kw_only=True)
class Timings:
    """One launch, all of it taken in turn: what slows the machine for a while slows each.

    Attributes:
        alone: a rank's steps while the others wait; of each local batch, one a round.
        jobs: the same while all take theirs, without exchange.
        waiting: for each local batch, several a round.
    """

    ranks: int
    alone: tuple[Job, ...]
    jobs: tuple[Job, ...]
    waiting: tuple[Waiting, ...]
    all_reduces: tuple[Measurement, ...]
    steps: tuple[StepTime, ...]


def timings_of(tree: Mapping[str, Any]) -> Timings:
    """From what rank 0 wrote as JSON."""
    return Timings(
        ranks=tree["ranks"],
        alone=tuple(map(_job, tree["alone"])),
        jobs=tuple(map(_job, tree["jobs"])),
        waiting=tuple(Waiting(**found) for found in tree["waiting"]),
        all_reduces=tuple(Measurement(*point) for point in tree["all_reduces"]),
        steps=tuple(StepTime(**{**step, "ratios": tuple(step["ratios"])}) for step in tree["steps"]),
    )


def _job(tree: Mapping[str, Any]) -> Job:
    layers = {key: tuple(tree[key]) for key in ("layer_bytes", "backward_seconds")}
    return Job(**{**tree, **layers})


def rank_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, which `simulator_error` writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", required=True)
    parser.add_argument("--image-size", type=int, required=True)
    parser.add_argument("--local-batches", type=int, nargs="+", required=True)
    parser.add_argument("--buckets-mib", type=int, nargs="+", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args(argv)


def time_all(arguments: argparse.Namespace) -> None:
    """All ranks run this."""
    with distributed.session(1) as ranks:

        def job(local_batch: int) -> Job:
            network = {"image_size": arguments.image_size, "n_classes": CLASSES, "local_batch": local_batch}
            return measured_job(arguments.network, **network, device=ranks.device)

        alone: list[Job] = []
        jobs: list[Job] = []
        waiting: list[Waiting] = []
        all_reduces: list[Measurement] = []
        ratios: dict[tuple[int, int], list[float]] = {
            (batch, mib): [] for batch in arguments.local_batches for mib in arguments.buckets_mib
        }
        for _ in range(arguments.rounds):
            for batch in arguments.local_batches:
                distributed.barrier()
                alone += [job(batch)] if ranks.is_main else []
                distributed.barrier()
                jobs.append(job(batch))
            all_reduces += [all_reduce_time(n_bytes, ranks, arguments.steps) for n_bytes in BYTES]
            for batch in arguments.local_batches:
                without, *whole = _taking_turns(arguments, batch, ranks)
                waiting.append(_waiting(batch, without))
                for mib, seconds in zip(arguments.buckets_mib, whole, strict=True):
                    ratios[batch, mib] += (seconds.max(axis=0) / without.max(axis=0)).tolist()
        if ranks.is_main:
            found = Timings(
                ranks=ranks.count,
                alone=tuple(alone),
                jobs=tuple(jobs),
                waiting=tuple(waiting),
                all_reduces=tuple(all_reduces),
                steps=tuple(
                    StepTime(local_batch=batch, bucket_mib=mib, ratios=tuple(of_pairs))
                    for (batch, mib), of_pairs in ratios.items()
                ),
            )
            write_json(arguments.out, asdict(found))


def _waiting(local_batch: int, without: NDArray[np.float64]) -> Waiting:
    factor = np.median(without.max(axis=0)) / np.median(without[0])
    return Waiting(local_batch=local_batch, factor=float(factor))


def _taking_turns(arguments: argparse.Namespace, local_batch: int, ranks: Ranks) -> list[NDArray[np.float64]]:
    """(ranks, steps) seconds: without exchange, then of each bucket size.

    A step of each in turn, since the machine drifts by a quarter within a minute; all ranks begin each together.
    """

    def stepped(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[], None]:
        plain = get_model(arguments.network, weights=None, num_classes=CLASSES)
        model = wrap(plain.to(memory_format=torch.channels_last))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

        def step() -> None:
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    side = arguments.image_size
    images = torch.randn(local_batch, 3, side, side).to(memory_format=torch.channels_last)
    labels = torch.zeros(local_batch, dtype=torch.int64)
    exchanging = (
        partial(distributed.data_parallel, device=ranks.device, transport=Transport(bucket_mib=mib))
        for mib in arguments.buckets_mib
    )
    turns = [stepped(lambda model: model), *map(stepped, exchanging)]
    times = np.array([[_seconds(step) for step in turns] for _ in range(_WARM_UP + arguments.steps)])[_WARM_UP:]
    by_rank = np.array(distributed.all_gather(times))
    return list(np.moveaxis(by_rank, 2, 0))


def _seconds(work: Callable[[], Any]) -> float:
    distributed.barrier()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    time_all(rank_arguments())
