"""The way that gradients take from rank to rank."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Transport:
    """How gradients travel; changes a result by rounding alone.

    Attributes:
        library: `horovod` goes its own way, for which the next three stay as they are.
        bucket_mib: MiB of gradients that travel together while the backward pass goes on, > 0. 25 is torch's
            own choice, with which the first bucket, whose gradients are there first, holds 1 MiB.
        overlap: False sends everything in one message after the backward pass.
        hierarchical: summed on one rank of each node, averaged between these, and handed back inside the node.
        timeout_seconds: without an answer, > 0, after which a rank fails: others are lost.
    """

    library: Literal["ddp", "horovod"] = "ddp"
    bucket_mib: float = 25.0
    overlap: bool = True
    hierarchical: bool = False
    timeout_seconds: float = 300.0
