"""Seconds of a data-parallel training step: all-reduces in the latency-bandwidth model, overlap, and scaling.

An all-reduce of n bytes over p workers, on links of latency a and bandwidth b, takes

* ring (Patarasuk and Yuan 2009, J. Parallel Distrib. Comput. 69): 2(p - 1) a + 2 (p - 1)/p n/b. Every worker sends n/p
  bytes to its neighbor p - 1 times to reduce and p - 1 times to gather.
* double binary tree (Sanders, Speck and Traeff 2009, Parallel Computing 35): 2 ceil(log2 p) t + 2 n/b. Each of two
  trees carries half of the bytes up and down. A leaf of one tree is an inner node of the other, so that all links are
  busy in both directions. Bytes flow in a pipeline. Its filling is the latency t of a hop, which is that of a chunk
  (`NetworkLink.tree_hop_seconds`).

Across nodes, workers are ordered by node, so that each byte enters and leaves a node once. A flat ring or tree has the
bandwidth of its slowest link and the latency of the links that a byte passes in turn. Its hops are those of NCCL's
tuning model (src/graph/tuning.cc): its tree joins nodes, and the GPUs of each node form a chain. NCCL's model also
nearly doubles the latency of a ring across nodes for large messages. It gives trees less than the full bandwidth, as
little as half for medium messages. This model has neither effect, so it is too fast for both.

Hierarchical all-reduces run a ring inside every node, whose reduce-scatter leaves 1/g of the bytes to each of g GPUs.
Then g all-reduces between nodes share the adapters, n bytes in total. The gathering half of the ring follows. The
trainer's `hierarchical` exchange is `leader` here. The GPUs of a node send their bytes to one of them along a pipelined
chain of g - 1 hops. A ring of these leaders sums them, and the sum returns along the chains. In the model that one GPU
drives all adapters of its node, which makes it too fast.

Gradients are split into messages: fixed buckets as in DDP, or messages that Horovod's coordinator negotiates.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from pipeline.simulator.job import Job
from pipeline.simulator.machine import Machine, NetworkLink


class Message(NamedTuple):
    """`n_bytes` that can be sent from `ready_seconds` after the start of the step."""

    ready_seconds: float
    n_bytes: float


@dataclass(frozen=True, kw_only=True)
class Negotiation:
    """Horovod's background cycle: workers report ready gradients to a coordinator, which answers what to reduce.

    Rounds start at multiples of the cycle time, or of the length of a round where that is longer. The coordinator
    receives a message from each other worker and answers it, one after another. Romero et al. (2022, NSDI,
    "Accelerating collective communication ...") replace this scheme, since it grows with the number of workers.

    Attributes:
        cycle_seconds: HOROVOD_CYCLE_TIME, > 0.
        message_seconds: time of the coordinator for one message, >= 0.
    """

    cycle_seconds: float
    message_seconds: float

    def __post_init__(self) -> None:
        assert self.cycle_seconds > 0, self.cycle_seconds
        assert self.message_seconds >= 0, self.message_seconds

    def round_seconds(self, workers: int) -> float:
        """Return the seconds of a round: a message to and from each of the other workers."""
        return 2 * (workers - 1) * self.message_seconds


def bucketed(
    layer_bytes: Sequence[float], ready_seconds: Sequence[float], bucket_bytes: float, first_bucket_bytes: float
) -> list[Message]:
    """Fill buckets layer by layer, as PyTorch's DDP does after the first backward pass.

    Args:
        layer_bytes, ready_seconds: (n_layers,) in the order of the backward pass.
        bucket_bytes: a bucket with at least this size is full.
        first_bucket_bytes: the same for the first bucket.

    Returns:
        Messages with all bytes, each ready with the last of its layers.
    """
    messages: list[Message] = []
    filled = 0.0
    for n_bytes, ready in zip(layer_bytes, ready_seconds, strict=True):
        filled += n_bytes
        if filled >= (bucket_bytes if messages else first_bucket_bytes):
            messages.append(Message(ready, filled))
            filled = 0.0
    if filled > 0:
        messages.append(Message(ready_seconds[-1], filled))
    return messages


def negotiated(
    layer_bytes: Sequence[float],
    ready_seconds: Sequence[float],
    bucket_bytes: float,
    negotiation: Negotiation,
    workers: int,
) -> list[Message]:
    """Fuse layers that are ready when a round starts into messages of at most `bucket_bytes` at its end.

    A larger layer is a separate message (docs/tensor-fusion.rst of Horovod).
    """
    length = negotiation.round_seconds(workers)
    period = max(negotiation.cycle_seconds, length)
    with_round = [(math.ceil(ready / period), n) for ready, n in zip(ready_seconds, layer_bytes, strict=True) if n > 0]
    return [
        Message(number * period + length, fused)
        for number, layers in groupby(with_round, key=lambda layer: layer[0])
        for fused in _fused([n_bytes for _, n_bytes in layers], bucket_bytes)
    ]


def _fused(layer_bytes: Sequence[float], max_bytes: float) -> list[float]:
    buffers: list[float] = []
    for n_bytes in layer_bytes:
        if buffers and buffers[-1] + n_bytes <= max_bytes:
            buffers[-1] += n_bytes
        else:
            buffers.append(n_bytes)
    return buffers


def ring_seconds(n_bytes: float, workers: int, link: NetworkLink) -> float:
    """Return the seconds of a ring over equal links; 0 for one worker."""
    hops = 2 * (workers - 1)
    return hops * link.latency_seconds + hops / workers * n_bytes / link.bytes_per_second


def tree_seconds(n_bytes: float, workers: int, link: NetworkLink) -> float:
    """Return the seconds of a double binary tree over equal links; 0 for one worker."""
    if workers == 1:
        return 0.0
    return 2 * _depth(workers) * link.tree_hop_seconds + 2 * n_bytes / link.bytes_per_second


def _ring(n_bytes: float, workers: int, machine: Machine) -> float:
    per_node, nodes = machine.placement(workers)
    # A byte takes 2(nodes - 1) hops between nodes and its other hops inside nodes.
    intra = 2 * (workers - nodes) * machine.intra_node.latency_seconds
    inter = 2 * (nodes - 1) * machine.inter_node.latency_seconds
    return intra + inter + 2 * (workers - 1) / workers * n_bytes / _slowest(machine, per_node, nodes)


def _tree(n_bytes: float, workers: int, machine: Machine) -> float:
    per_node, nodes = machine.placement(workers)
    if workers == 1:
        return 0.0
    intra = 2 * (per_node - 1) * machine.intra_node.tree_hop_seconds
    inter = 2 * _depth(nodes) * machine.inter_node.tree_hop_seconds
    return intra + inter + 2 * n_bytes / _slowest(machine, per_node, nodes)


def _hierarchical_ring(n_bytes: float, workers: int, machine: Machine) -> float:
    per_node, nodes = machine.placement(workers)
    return ring_seconds(n_bytes, per_node, machine.intra_node) + ring_seconds(n_bytes, nodes, machine.inter_node)


def _hierarchical_tree(n_bytes: float, workers: int, machine: Machine) -> float:
    per_node, nodes = machine.placement(workers)
    return ring_seconds(n_bytes, per_node, machine.intra_node) + tree_seconds(n_bytes, nodes, machine.inter_node)


def _leader(n_bytes: float, workers: int, machine: Machine) -> float:
    per_node, nodes = machine.placement(workers)
    to_leader = 0.0
    if per_node > 1:
        to_leader = (per_node - 1) * machine.intra_node.latency_seconds + n_bytes / machine.intra_node.bytes_per_second
    return 2 * to_leader + ring_seconds(n_bytes, nodes, machine.inter_node)


ALL_REDUCE: Mapping[str, Callable[[float, int, Machine], float]] = {
    "ring": _ring,
    "tree": _tree,
    "hierarchical_ring": _hierarchical_ring,
    "hierarchical_tree": _hierarchical_tree,
    "leader": _leader,
}
"""Algorithm -> seconds of (bytes, workers, machine). Hierarchical: a ring inside nodes, the named one between them.

Each raises ValueError if the workers do not fit the machine (`Machine.placement`).
"""


def _depth(workers: int) -> int:
    """Return ceil(log2(workers))."""
    return (workers - 1).bit_length()


def _slowest(machine: Machine, per_node: int, nodes: int) -> float:
    used = [link for link, count in ((machine.intra_node, per_node), (machine.inter_node, nodes)) if count > 1]
    return min((link.bytes_per_second for link in used), default=float("inf"))


@dataclass(frozen=True, kw_only=True)
class CommunicationModel:
    """How gradients are exchanged.

    Attributes:
        algorithm: a key of ALL_REDUCE.
        bucket_bytes: gradient bytes of a message before compression, > 0: the minimum of a bucket, or the maximum of
            a negotiated message.
        first_bucket_bytes: the same for the first bucket; None: equal to bucket_bytes.
        overlap: send during the backward pass, or only after it.
        compression: gradient bytes per byte sent, >= 1: 2 for float32 sent as bfloat16.
        negotiation: of Horovod; None: the order of buckets is fixed in advance, as in DDP.
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
class SimulatedStep:
    """Seconds of one step.

    Attributes:
        compute_seconds: forward, backward and optimizer.
        all_reduce_seconds: sum over all messages, hidden or not.
        exposed_seconds: by which the step is longer than its computation: all-reduces, negotiation and waiting that
            the backward pass does not hide.
    """

    compute_seconds: float
    all_reduce_seconds: float
    exposed_seconds: float

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.exposed_seconds


def simulate_step(machine: Machine, job: Job, communication: CommunicationModel, workers: int) -> SimulatedStep:
    """Simulate a step of `workers` equal workers that start together and send messages one at a time, in order.

    The model assumes that communication does not slow down computation.

    Raises:
        ValueError: the workers do not fit the machine (`Machine.placement`).
    """
    machine.placement(workers)
    backward_end = job.ready_seconds[-1]
    compute = backward_end + job.optimizer_seconds
    if workers == 1:
        return SimulatedStep(compute_seconds=compute, all_reduce_seconds=0.0, exposed_seconds=0.0)
    all_reduce = ALL_REDUCE[communication.algorithm]
    free, total = 0.0, 0.0
    for message in _messages(job, communication, workers):
        seconds = all_reduce(message.n_bytes / communication.compression, workers, machine)
        free = max(free, message.ready_seconds) + seconds
        total += seconds
    return SimulatedStep(
        compute_seconds=compute, all_reduce_seconds=total, exposed_seconds=max(0.0, free - backward_end)
    )


def _messages(job: Job, communication: CommunicationModel, workers: int) -> list[Message]:
    ready = job.ready_seconds
    backward_end = ready[-1]
    if communication.negotiation is not None:
        announced = ready if communication.overlap else [backward_end] * len(ready)
        return negotiated(job.layer_bytes, announced, communication.bucket_bytes, communication.negotiation, workers)
    first = communication.first_bucket_bytes or communication.bucket_bytes
    buckets = bucketed(job.layer_bytes, ready, communication.bucket_bytes, first)
    return buckets if communication.overlap else [bucket._replace(ready_seconds=backward_end) for bucket in buckets]


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """Throughput at one number of workers.

    Attributes:
        workers: one per GPU.
        global_batch: images of a step over all workers.
        step: seconds of a step.
        images_per_second: over all workers.
        efficiency: images_per_second / (workers x images_per_second of a single worker), in (0, 1].
    """

    workers: int
    global_batch: int
    step: SimulatedStep
    images_per_second: float
    efficiency: float


def weak_scaling(
    machine: Machine, job: Job, communication: CommunicationModel, workers: Sequence[int]
) -> list[ScalingPoint]:
    """Simulate numbers of workers that each have the job's local batch.

    Raises:
        ValueError: a number of workers does not fit the machine.
    """
    single = simulate_step(machine, job, communication, 1).seconds
    return [_point(simulate_step(machine, job, communication, count), job, count, single) for count in workers]


def strong_scaling(
    machine: Machine, job: Job, communication: CommunicationModel, workers: Sequence[int]
) -> list[ScalingPoint]:
    """Simulate numbers of workers that share the batch of the job, which is that of a single worker (`Job.share`).

    Raises:
        ValueError: a number of workers does not fit the machine or does not divide the batch.
    """
    single = simulate_step(machine, job, communication, 1).seconds
    shares = [(job.share(count), count) for count in workers]
    return [
        _point(simulate_step(machine, share, communication, count), share, count, single / count)
        for share, count in shares
    ]


def _point(step: SimulatedStep, job: Job, workers: int, ideal_seconds: float) -> ScalingPoint:
    return ScalingPoint(
        workers=workers,
        global_batch=workers * job.local_batch,
        step=step,
        images_per_second=workers * job.local_batch / step.seconds,
        efficiency=ideal_seconds / step.seconds,
    )
