"""Split gradients into messages: fixed buckets as in DDP, or messages that Horovod's coordinator negotiates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple


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
