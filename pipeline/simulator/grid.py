"""Rows of a simulation, and what they exchange."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pipeline.distributed import CommConfig
from pipeline.simulator.job import Job, with_local_batch
from pipeline.simulator.machine import Machine
from pipeline.simulator.messages import Negotiation
from pipeline.simulator.model import CommunicationModel, ScalingPoint, strong_scaling, weak_scaling

# How gradients travel in a simulation: as the command line says, else as the trainer, or Horovod, would send them.


_MIB = 2.0**20
# torch.distributed._DEFAULT_FIRST_BUCKET_BYTES; DDP has it where it is told no size, and the trainer tells it none for
# torch's own.
_FIRST_BUCKET_MIB = 1.0
# HOROVOD_FUSION_THRESHOLD, as horovod/common/operations.cc sets it in 0.28.1.
_FUSION_MIB = 128.0


def communication_variants(arguments: argparse.Namespace, job: Job) -> dict[str, CommunicationModel]:
    """Name -> way, for each algorithm in buckets, or in one message, and with `--negotiation` as Horovod fuses them."""
    found = {algorithm: _fixed(arguments, job, algorithm) for algorithm in arguments.algorithms}
    if arguments.negotiation:
        found |= {f"{algorithm}, negotiated": _negotiated(arguments, algorithm) for algorithm in arguments.algorithms}
    return found


def communication_constants(found: Mapping[str, CommunicationModel], job: Job) -> Mapping[str, tuple[object, str]]:
    """What all of them share, and the sizes of messages by kind; each with its origin."""
    kinds = {"negotiated" if way.negotiation else "fixed": way for way in found.values()}
    any_way = next(iter(found.values()))
    return {
        "sent": ("beside the backward pass" if any_way.overlap else "after the backward pass", "given"),
        "compression": (any_way.compression, "given"),
        **{f"messages, {kind}": (_sizes(way, job), "given") for kind, way in kinds.items()},
    }


def _fixed(arguments: argparse.Namespace, job: Job, algorithm: str) -> CommunicationModel:
    told, torchs_own = arguments.bucket_mib, CommConfig().bucket_mib
    together = arguments.no_overlap and told is None
    return CommunicationModel(
        algorithm=algorithm,
        bucket_bytes=sum(job.layer_bytes) if together else _MIB * (told or torchs_own),
        first_bucket_bytes=_MIB * _FIRST_BUCKET_MIB if not together and told in (None, torchs_own) else None,
        overlap=not arguments.no_overlap,
        compression=arguments.compression,
        negotiation=None,
    )


def _negotiated(arguments: argparse.Namespace, algorithm: str) -> CommunicationModel:
    cycle_ms, message_us = arguments.negotiation
    return CommunicationModel(
        algorithm=algorithm,
        bucket_bytes=_MIB * (arguments.bucket_mib or _FUSION_MIB),
        overlap=not arguments.no_overlap,
        compression=arguments.compression,
        negotiation=Negotiation(cycle_seconds=cycle_ms / 1e3, message_seconds=message_us / 1e6),
    )


def _sizes(way: CommunicationModel, job: Job) -> str:
    mib = f"{way.bucket_bytes / _MIB:g} MiB"
    if way.negotiation:
        return f"what is ready, at most {mib}"
    first = way.first_bucket_bytes
    if first is None and way.bucket_bytes >= sum(job.layer_bytes):
        return "one"
    return f"{mib}, the first {first / _MIB:g}" if first else mib


# The grid of simulated runs: scaling x GPUs x way to communicate, with time and cost.


_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """One simulated run.

    Attributes:
        scaling: `weak`: every GPU has the same local batch; `strong`: all of them share the global batch.
        way: how gradients are exchanged.
        hours: to train on all examples.
        cost: gpu_hours x the price of one; None without a price.
    """

    scaling: str
    way: str
    gpus: int
    global_batch: int
    local_batch: int
    step_seconds: float
    compute_seconds: float
    all_reduce_seconds: float
    exposed_seconds: float
    images_per_second: float
    efficiency: float
    hours: float
    gpu_hours: float
    cost: float | None

    def as_tree(self) -> dict[str, object]:
        return asdict(self)


def gpu_counts(machine: Machine) -> list[int]:
    """One GPU, then nodes doubled from one to all of them."""
    counts = {1, machine.gpus_per_node * machine.nodes}
    nodes = 1
    while nodes <= machine.nodes:
        counts.add(machine.gpus_per_node * nodes)
        nodes *= 2
    return sorted(counts)


def simulate_all(
    machine: Machine,
    job: Job,
    ways: Mapping[str, CommunicationModel],
    *,
    gpus: Sequence[int],
    batch_sizes: Sequence[int],
    examples: float,
    price: float | None,
) -> list[SimulatedRun]:
    """Weak scaling with the job's local batch, then strong scaling of each global batch.

    A batch that does not divide among so many GPUs has no row.

    Args:
        examples: images of a whole training, over all epochs.
        price: of a GPU for an hour.

    Raises:
        ValueError: a number of GPUs does not fit the machine.
    """
    rows = []
    for way, communication in ways.items():
        points = weak_scaling(machine, job, communication, gpus)
        rows += [_row("weak", way, point, examples, price) for point in points]
        for batch_size in batch_sizes:
            whole, sharing = with_local_batch(job, batch_size), [n for n in gpus if batch_size % n == 0]
            points = strong_scaling(machine, whole, communication, sharing)
            rows += [_row("strong", way, point, examples, price) for point in points]
    return rows


def _row(scaling: str, way: str, point: ScalingPoint, examples: float, price: float | None) -> SimulatedRun:
    hours = examples / point.images_per_second / _HOUR_S
    return SimulatedRun(
        scaling=scaling,
        way=way,
        gpus=point.workers,
        global_batch=point.global_batch,
        local_batch=point.global_batch // point.workers,
        step_seconds=point.step.seconds,
        compute_seconds=point.step.compute_seconds,
        all_reduce_seconds=point.step.all_reduce_seconds,
        exposed_seconds=point.step.exposed_seconds,
        images_per_second=point.images_per_second,
        efficiency=point.efficiency,
        hours=hours,
        gpu_hours=point.workers * hours,
        cost=None if price is None else price * point.workers * hours,
    )
