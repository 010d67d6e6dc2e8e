"""Grid of simulated runs: scaling, numbers of GPUs and variants of communication, with time and cost."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pipeline.distributed import CommConfig
from pipeline.simulator.job import Job, with_local_batch
from pipeline.simulator.machine import Machine
from pipeline.simulator.model import CommunicationModel, Negotiation, ScalingPoint, strong_scaling, weak_scaling

_HOUR_S = 3600.0
_MIB = 2.0**20
# torch.distributed._DEFAULT_FIRST_BUCKET_BYTES. DDP uses it without a given size, as the trainer does for torch's
# default.
_FIRST_BUCKET_MIB = 1.0
# HOROVOD_FUSION_THRESHOLD, as horovod/common/operations.cc sets it in 0.28.1.
_FUSION_MIB = 128.0


def communication_variants(arguments: argparse.Namespace, job: Job) -> dict[str, CommunicationModel]:
    """Return name -> model per algorithm: in buckets or in one message, and with `--negotiation` as Horovod fuses.

    Options of the command line decide; without them the defaults of the trainer or of Horovod apply.
    """
    variants = {algorithm: _fixed(arguments, job, algorithm) for algorithm in arguments.algorithms}
    if arguments.negotiation:
        variants |= {
            f"{algorithm}, negotiated": _negotiated(arguments, algorithm) for algorithm in arguments.algorithms
        }
    return variants


def communication_constants(variants: Mapping[str, CommunicationModel], job: Job) -> Mapping[str, tuple[object, str]]:
    """Return the constants that all variants share, and the message sizes by kind; each with its origin."""
    kinds = {"negotiated" if way.negotiation else "fixed": way for way in variants.values()}
    first = next(iter(variants.values()))
    return {
        "sent": ("during the backward pass" if first.overlap else "after the backward pass", "given"),
        "compression": (first.compression, "given"),
        **{f"messages, {kind}": (_sizes(way, job), "given") for kind, way in kinds.items()},
    }


def _fixed(arguments: argparse.Namespace, job: Job, algorithm: str) -> CommunicationModel:
    option, torch_default = arguments.bucket_mib, CommConfig().bucket_mib
    one_message = arguments.no_overlap and option is None
    return CommunicationModel(
        algorithm=algorithm,
        bucket_bytes=sum(job.layer_bytes) if one_message else _MIB * (option or torch_default),
        first_bucket_bytes=_MIB * _FIRST_BUCKET_MIB if not one_message and option in (None, torch_default) else None,
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
        return f"ready gradients, at most {mib}"
    first = way.first_bucket_bytes
    if first is None and way.bucket_bytes >= sum(job.layer_bytes):
        return "one"
    return f"{mib}, the first {first / _MIB:g}" if first else mib


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

    def to_dict(self) -> dict[str, object]:
        """Return the fields by name."""
        return asdict(self)


def gpu_counts(machine: Machine) -> list[int]:
    """Return the default numbers of GPUs: one, then those of 1, 2, 4, ... nodes, and of all nodes."""
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
    """Simulate weak scaling with the job's local batch, then strong scaling of each global batch.

    A batch that a number of GPUs does not divide has no row.

    Args:
        machine: the cluster.
        job: of one worker.
        ways: name -> exchange of gradients.
        gpus: numbers of GPUs.
        batch_sizes: global batch sizes of strong scaling.
        examples: images of a full training, over all epochs.
        price: per GPU hour, or None.

    Raises:
        ValueError: a number of GPUs does not fit the machine.
    """
    rows = []
    for way, communication in ways.items():
        points = weak_scaling(machine, job, communication, gpus)
        rows += [_row("weak", way, point, examples, price) for point in points]
        for batch_size in batch_sizes:
            single, divisors = with_local_batch(job, batch_size), [n for n in gpus if batch_size % n == 0]
            points = strong_scaling(machine, single, communication, divisors)
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
