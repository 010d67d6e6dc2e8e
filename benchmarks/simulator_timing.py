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
class Pace:
    """Steps without exchange of `local_batch` images a rank, each over one of the largest batch seconds apart.

    Attributes:
        alone: of a rank while the others wait.
        together: of all ranks, until the slowest is done.
    """

    local_batch: int
    alone: tuple[float, ...]
    together: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Timings:
    """One launch, all of it taken in turn: what slows the machine for a while slows each.

    Attributes:
        alone: rank 0's steps in their parts while the others wait; of each local batch, one a round.
        jobs: the same while all take theirs, without exchange.
        paces: of each local batch.
        waiting: of the largest batch without exchange, the slowest rank's step over rank 0's.
    """

    ranks: int
    alone: tuple[Job, ...]
    jobs: tuple[Job, ...]
    paces: tuple[Pace, ...]
    waiting: tuple[float, ...]
    all_reduces: tuple[Measurement, ...]
    steps: tuple[StepTime, ...]


def timings_of(tree: Mapping[str, Any]) -> Timings:
    """From what rank 0 wrote as JSON."""
    return Timings(
        ranks=tree["ranks"],
        alone=tuple(map(_job, tree["alone"])),
        jobs=tuple(map(_job, tree["jobs"])),
        paces=tuple(Pace(**_tuples(pace)) for pace in tree["paces"]),
        waiting=tuple(tree["waiting"]),
        all_reduces=tuple(Measurement(*point) for point in tree["all_reduces"]),
        steps=tuple(StepTime(**_tuples(step)) for step in tree["steps"]),
    )


def _job(tree: Mapping[str, Any]) -> Job:
    layers = {key: tuple(tree[key]) for key in ("layer_bytes", "backward_seconds")}
    return Job(**{**tree, **layers})


def _tuples(tree: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists for them."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in tree.items()}


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
        all_reduces: list[Measurement] = []
        own, together = (_Taken(arguments.local_batches, arguments.buckets_mib) for _ in range(2))
        for _ in range(arguments.rounds):
            for batch in arguments.local_batches:
                distributed.barrier()
                alone += [job(batch)] if ranks.is_main else []
                distributed.barrier()
                jobs.append(job(batch))
            all_reduces += [all_reduce_time(n_bytes, ranks, arguments.steps) for n_bytes in BYTES]
            if ranks.is_main:
                own.add({batch: seconds[np.newaxis] for batch, seconds in _taking_turns(arguments, None).items()})
            distributed.barrier()
            taken = _taking_turns(arguments, ranks)
            together.add({batch: np.array(distributed.all_gather(seconds)) for batch, seconds in taken.items()})
        if ranks.is_main:
            found = Timings(
                ranks=ranks.count,
                alone=tuple(alone),
                jobs=tuple(jobs),
                paces=tuple(
                    Pace(local_batch=batch, alone=own.paces(batch), together=together.paces(batch))
                    for batch in arguments.local_batches
                ),
                waiting=together.waiting,
                all_reduces=tuple(all_reduces),
                steps=tuple(
                    StepTime(local_batch=batch, bucket_mib=mib, ratios=together.ratios(batch, mib))
                    for batch in arguments.local_batches
                    for mib in arguments.buckets_mib
                ),
            )
            write_json(arguments.out, asdict(found))


class _Taken:
    """Seconds of steps that were taken in turn, over all rounds: of each batch (ranks, steps, 1 + bucket sizes)."""

    def __init__(self, batches: Sequence[int], buckets_mib: Sequence[int]) -> None:
        self._largest, self._buckets_mib = max(batches), buckets_mib
        self._rounds: list[Mapping[int, NDArray[np.float64]]] = []

    def add(self, seconds: Mapping[int, NDArray[np.float64]]) -> None:
        """Another round."""
        self._rounds.append(seconds)

    def paces(self, batch: int) -> tuple[float, ...]:
        """Of `Pace`."""
        return tuple((self._slowest(batch)[:, 0] / self._slowest(self._largest)[:, 0]).tolist())

    def ratios(self, batch: int, bucket_mib: int) -> tuple[float, ...]:
        """Of `StepTime`."""
        slowest = self._slowest(batch)
        return tuple((slowest[:, 1 + self._buckets_mib.index(bucket_mib)] / slowest[:, 0]).tolist())

    @property
    def waiting(self) -> tuple[float, ...]:
        """Of `Timings`."""
        first = np.concatenate([seconds[self._largest][0, :, 0] for seconds in self._rounds])
        return tuple((self._slowest(self._largest)[:, 0] / first).tolist())

    def _slowest(self, batch: int) -> NDArray[np.float64]:
        """(steps of all rounds, 1 + bucket sizes), until the slowest rank is done."""
        return np.concatenate([seconds[batch].max(axis=0) for seconds in self._rounds])


def _taking_turns(arguments: argparse.Namespace, ranks: Ranks | None) -> dict[int, NDArray[np.float64]]:
    """This rank's seconds of each batch, (steps, 1 + bucket sizes): without exchange, then with it.

    A step of each batch and way in turn, since the machine drifts by a quarter within a minute; all ranks begin each
    together.

    Args:
        ranks: None: of this rank alone, without exchange.
    """
    ways: list[Callable[[nn.Module], nn.Module]] = [lambda model: model]
    if ranks:
        ways += [
            partial(distributed.data_parallel, device=ranks.device, transport=Transport(bucket_mib=mib))
            for mib in arguments.buckets_mib
        ]
    turns = {batch: [_stepped(arguments, batch, way) for way in ways] for batch in arguments.local_batches}
    seconds: dict[int, list[list[float]]] = {batch: [] for batch in turns}
    for _ in range(_WARM_UP + arguments.steps):
        for batch, steps in turns.items():
            seconds[batch].append([_seconds(step, together=ranks is not None) for step in steps])
    return {batch: np.array(taken[_WARM_UP:]) for batch, taken in seconds.items()}


def _stepped(
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


def _seconds(work: Callable[[], Any], *, together: bool) -> float:
    if together:
        distributed.barrier()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    time_all(rank_arguments())
