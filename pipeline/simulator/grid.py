"""Grid of simulated runs: scaling, numbers of GPUs and variants of communication, with time and cost.

Its report is a table and constants as text, a JSON file and a figure.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.artifacts.files import write_bytes, write_json
from pipeline.distributed import CommConfig
from pipeline.figures.batch_curves import ScalingCurve, scaling_figure
from pipeline.figures.rendering import svg
from pipeline.simulator.fitting import LinkFit
from pipeline.simulator.job import Job, with_local_batch
from pipeline.simulator.machine import Machine, MachineConfig
from pipeline.simulator.model import CommunicationModel, Negotiation, ScalingPoint, strong_scaling, weak_scaling
from pipeline.stats.formatting import aligned_lines

_HOUR_S = 3600.0
_MIB = 2.0**20
# torch.distributed._DEFAULT_FIRST_BUCKET_BYTES. DDP uses it without a given size, as the trainer does for torch's
# default.
_FIRST_BUCKET_MIB = 1.0
# HOROVOD_FUSION_THRESHOLD, as horovod/common/operations.cc sets it in 0.28.1.
_FUSION_MIB = 128.0

Constants = Mapping[str, tuple[object, str]]
"""Name -> value and origin: given, assumed or measured."""


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


def table(rows: Sequence[SimulatedRun]) -> Iterator[str]:
    """Yield a line per scaling, batch and number of GPUs: throughput of all ways, time and cost of the fastest."""
    ways = list(dict.fromkeys(row.way for row in rows))
    head = ["scaling", "batch", "GPUs", *(f"{way}: images/s" for way in ways), "fastest", "hours", "GPU hours", "cost"]
    lines = [head]
    groups: dict[tuple[str, int, int], list[SimulatedRun]] = {}
    for row in rows:
        groups.setdefault((row.scaling, row.global_batch if row.scaling == "strong" else 0, row.gpus), []).append(row)
    for (scaling, _, gpus), same in sorted(groups.items(), key=lambda item: (item[0][0] == "strong", item[0])):
        fastest = min(same, key=lambda row: row.hours)
        rates = [f"{row.images_per_second:,.0f} {row.efficiency:4.0%}" for row in same]
        cost = "" if fastest.cost is None else f"{fastest.cost:,.0f}"
        amounts = [f"{fastest.hours:,.3g}", f"{fastest.gpu_hours:,.0f}", cost]
        lines.append([scaling, f"{fastest.global_batch:,}", f"{gpus:,}", *rates, fastest.way, *amounts])
    if not any(line[-1] for line in lines[1:]):
        lines = [line[:-1] for line in lines]
    yield from aligned_lines(lines)


def undivided_lines(rows: Sequence[SimulatedRun], batch_sizes: Sequence[int]) -> Iterator[str]:
    """Yield a line for each batch of strong scaling that has no row."""
    simulated = {row.global_batch for row in rows if row.scaling == "strong"}
    for batch_size in sorted(set(batch_sizes) - simulated):
        yield f"no strong scaling of batch {batch_size:,}: it is not divisible by any of these numbers of GPUs"


def machine_constants(config: MachineConfig, origins: Mapping[str, str]) -> Constants:
    """Return the figures of a machine with their origins."""
    tree = config.model_dump()

    def value(key: str) -> object:
        link, _, inner = key.partition(".")
        return tree[link][inner] if inner else tree[link]

    return {key: (value(key), origin) for key, origin in origins.items()}


def job_constants(arguments: argparse.Namespace, job: Job, timed: str | None) -> Constants:
    """Return the constants of the network, the GPU, the coordinator and the training.

    Args:
        arguments: of the command line.
        job: of one worker.
        timed: name of the device that a step was timed on; None: its speed is given.
    """
    images_per_second = job.local_batch / (job.ready_seconds[-1] + job.optimizer_seconds)
    origin = "measured" if timed else "given"
    constants: dict[str, tuple[object, str]] = {
        "images/s of one GPU": (images_per_second, origin),
        "bytes of the gradients": (sum(job.layer_bytes), "given"),
        "times of forward and backward, and of each layer": (
            f"those of {timed}" if timed else "1 : 2, by multiplications",
            "measured" if timed else "assumed",
        ),
        "times at other local batches": ("in proportion", "assumed"),
        "images over all epochs": (arguments.examples, "given"),
    }
    if arguments.price_per_gpu_hour is not None:
        constants["price of a GPU for an hour"] = (arguments.price_per_gpu_hour, "given")
    if arguments.negotiation:
        for name, figure in zip(("cycle (ms)", "message (us)"), arguments.negotiation, strict=True):
            constants[f"negotiation, {name}"] = (figure, "given")
    return constants


def constant_lines(constants: Constants) -> Iterator[str]:
    """Yield a line for each origin."""
    for origin in ("measured", "given", "assumed"):
        named = [
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, (value, of) in constants.items()
            if of == origin
        ]
        yield f"{origin}: {'; '.join(named) or 'nothing'}"


def write_results(
    arguments: argparse.Namespace,
    title: str,
    rows: Sequence[SimulatedRun],
    ways: Mapping[str, CommunicationModel],
    constants: Constants,
    fitted: LinkFit | None,
) -> None:
    """Write the JSON and the SVG file into `arguments.out`, and print their paths."""
    name = f"{arguments.machine.stem}.{arguments.network}"
    tree: dict[str, Any] = {
        "simulated": True,
        "title": title,
        "machine": str(arguments.machine),
        "network": arguments.network,
        "examples": arguments.examples,
        "ways": {name: asdict(way) for name, way in ways.items()},
        "constants": {key: {"value": value, "origin": origin} for key, (value, origin) in constants.items()},
        "fit": None if fitted is None else {"error": fitted.relative_error, "held_out_error": fitted.held_out_error},
        "rows": [row.to_dict() for row in rows],
    }
    write_json(arguments.out / f"{name}.json", tree)
    write_bytes(arguments.out / f"{name}.svg", svg(scaling_figure(*_curves(rows), title=title)))
    print(f"written: {arguments.out / name}.json and .svg")


def _curves(rows: Sequence[SimulatedRun]) -> tuple[dict[str, ScalingCurve], dict[str, ScalingCurve]]:
    """Return curves of weak scaling by way, and of strong scaling by global batch with the fastest way."""
    weak = {way: [row for row in rows if (row.scaling, row.way) == ("weak", way)] for way in {r.way: 0 for r in rows}}
    strong: dict[str, list[SimulatedRun]] = {}
    for batch in sorted({row.global_batch for row in rows if row.scaling == "strong"}):
        same = [row for row in rows if (row.scaling, row.global_batch) == ("strong", batch)]
        fastest = {n: min((r for r in same if r.gpus == n), key=lambda r: r.hours) for n in {r.gpus for r in same}}
        strong[f"batch {batch:,}"] = [fastest[n] for n in sorted(fastest)]
    weak_curves, strong_curves = ({name: _curve(of) for name, of in group.items()} for group in (weak, strong))
    return weak_curves, strong_curves


def _curve(rows: Sequence[SimulatedRun]) -> ScalingCurve:
    return ScalingCurve(
        gpus=[row.gpus for row in rows],
        images_per_second=[row.images_per_second for row in rows],
        efficiency=[row.efficiency for row in rows],
        hours=[row.hours for row in rows],
    )
