"""The grid of simulated runs: scaling x GPUs x way to communicate, with time and cost."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from pipeline.commands.simulating.network_job import of_local_batch
from pipeline.costmodel import Communication, Job, Machine, ScalingPoint, strong_scaling, weak_scaling

_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Row:
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
    ways: Mapping[str, Communication],
    *,
    gpus: Sequence[int],
    batch_sizes: Sequence[int],
    examples: float,
    price: float | None,
) -> list[Row]:
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
            whole, sharing = of_local_batch(job, batch_size), [n for n in gpus if batch_size % n == 0]
            points = strong_scaling(machine, whole, communication, sharing)
            rows += [_row("strong", way, point, examples, price) for point in points]
    return rows


def _row(scaling: str, way: str, point: ScalingPoint, examples: float, price: float | None) -> Row:
    hours = examples / point.images_per_second / _HOUR_S
    return Row(
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
