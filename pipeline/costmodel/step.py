"""One data-parallel step: forward, backward with the all-reduces beside it, and the optimizer once all are done."""

from dataclasses import dataclass

from pipeline.costmodel.all_reduce import ALL_REDUCE
from pipeline.costmodel.job import Job
from pipeline.costmodel.machine import Machine
from pipeline.costmodel.messages import Message, Negotiation, bucketed, negotiated


@dataclass(frozen=True, kw_only=True)
class Communication:
    """How gradients are exchanged.

    Attributes:
        algorithm: a key of ALL_REDUCE.
        bucket_bytes: of gradients in a message, > 0, before compression: at least so many in buckets, at most so many
            when negotiated.
        first_bucket_bytes: of the first bucket, likewise; None: as of the others.
        overlap: send during the backward pass, or only after it.
        compression: bytes of a gradient for each byte sent, >= 1: 2 for float32 sent as bfloat16.
        negotiation: of Horovod; None: the order of buckets is fixed beforehand, as in DDP.
    """

    algorithm: str
    bucket_bytes: float
    overlap: bool
    compression: float
    negotiation: Negotiation | None
    first_bucket_bytes: float | None = None

    def __post_init__(self) -> None:
        assert self.algorithm in ALL_REDUCE, self.algorithm
        assert self.bucket_bytes > 0, self.bucket_bytes
        assert self.first_bucket_bytes is None or self.first_bucket_bytes > 0, self.first_bucket_bytes
        assert self.compression >= 1, self.compression


@dataclass(frozen=True, kw_only=True)
class Step:
    """Seconds of one step.

    Attributes:
        compute_seconds: forward, backward and optimizer.
        all_reduce_seconds: sum over all messages, hidden or not.
        exposed_seconds: by which the step is longer than its computation: all-reduces, negotiation and waiting that no
            backward pass hides.
    """

    compute_seconds: float
    all_reduce_seconds: float
    exposed_seconds: float

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.exposed_seconds


def simulate_step(machine: Machine, job: Job, communication: Communication, workers: int) -> Step:
    """A step of `workers` equal workers that start together; messages go one at a time, in order.

    Communication is taken to slow down no computation.

    Raises:
        ValueError: the workers do not fit the machine (`Machine.placement`).
    """
    machine.placement(workers)
    backward_end = job.ready_seconds[-1]
    compute = backward_end + job.optimizer_seconds
    if workers == 1:
        return Step(compute_seconds=compute, all_reduce_seconds=0.0, exposed_seconds=0.0)
    all_reduce = ALL_REDUCE[communication.algorithm]
    free, total = 0.0, 0.0
    for message in _messages(job, communication, workers):
        took = all_reduce(message.n_bytes / communication.compression, workers, machine)
        free = max(free, message.ready_seconds) + took
        total += took
    return Step(compute_seconds=compute, all_reduce_seconds=total, exposed_seconds=max(0.0, free - backward_end))


def _messages(job: Job, communication: Communication, workers: int) -> list[Message]:
    ready = job.ready_seconds
    backward_end = ready[-1]
    if communication.negotiation is not None:
        asked = ready if communication.overlap else [backward_end] * len(ready)
        return negotiated(job.layer_bytes, asked, communication.bucket_bytes, communication.negotiation, workers)
    first = communication.first_bucket_bytes or communication.bucket_bytes
    buckets = bucketed(job.layer_bytes, ready, communication.bucket_bytes, first)
    return buckets if communication.overlap else [bucket._replace(ready_seconds=backward_end) for bucket in buckets]
