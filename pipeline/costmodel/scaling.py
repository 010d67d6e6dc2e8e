"""Throughput against the number of workers."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.costmodel.job import Job
from pipeline.costmodel.machine import Machine
from pipeline.costmodel.step import Communication, Step, simulate_step


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """A simulated run.

    Attributes:
        workers: one a GPU.
        global_batch: images of a step over all workers.
        step: its seconds.
        images_per_second: over all workers.
        efficiency: images_per_second / (workers x that of one worker alone), in (0, 1].
    """

    workers: int
    global_batch: int
    step: Step
    images_per_second: float
    efficiency: float


def weak_scaling(
    machine: Machine, job: Job, communication: Communication, workers: Sequence[int]
) -> list[ScalingPoint]:
    """Every worker has the job's local batch, however many there are.

    Raises:
        ValueError: a number of workers does not fit the machine.
    """
    alone = simulate_step(machine, job, communication, 1).seconds
    return [_point(simulate_step(machine, job, communication, count), job, count, alone) for count in workers]


def strong_scaling(
    machine: Machine, job: Job, communication: Communication, workers: Sequence[int]
) -> list[ScalingPoint]:
    """The job is that of one worker alone, whose batch is divided among the workers (`Job.share`).

    Raises:
        ValueError: a number of workers does not fit the machine or does not divide the batch.
    """
    alone = simulate_step(machine, job, communication, 1).seconds
    shares = [(job.share(count), count) for count in workers]
    return [
        _point(simulate_step(machine, share, communication, count), share, count, alone / count)
        for share, count in shares
    ]


def _point(step: Step, job: Job, workers: int, ideal_seconds: float) -> ScalingPoint:
    return ScalingPoint(
        workers=workers,
        global_batch=workers * job.local_batch,
        step=step,
        images_per_second=workers * job.local_batch / step.seconds,
        efficiency=ideal_seconds / step.seconds,
    )
