"""A cluster as the model sees it: nodes of some GPUs, a link inside each node and one between nodes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Link:
    """Sending n bytes takes latency + n / bandwidth (Hockney 1994, the alpha-beta model).

    Attributes:
        latency_seconds: >= 0.
        bytes_per_second: in one direction, while the other direction carries as much; > 0.
        tree_latency_seconds: of a hop of a tree, which passes a whole chunk before the next hop begins with it, >= 0;
            None: no longer than of any other.
    """

    latency_seconds: float
    bytes_per_second: float
    tree_latency_seconds: float | None = None

    def __post_init__(self) -> None:
        assert self.latency_seconds >= 0, self.latency_seconds
        assert self.bytes_per_second > 0, self.bytes_per_second
        assert self.tree_latency_seconds is None or self.tree_latency_seconds >= 0, self.tree_latency_seconds

    @property
    def tree_hop_seconds(self) -> float:
        """Latency of a hop of a tree."""
        return self.latency_seconds if self.tree_latency_seconds is None else self.tree_latency_seconds


NO_LINK = Link(latency_seconds=0.0, bytes_per_second=math.inf)
"""Where there is nothing to link: inside a node of one GPU, between the nodes of a machine that has one."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One worker runs on each GPU.

    Attributes:
        nodes, gpus_per_node: >= 1.
        inside: between two GPUs of a node.
        between: between two nodes, with all network adapters of a node together. Its GPUs share it.
    """

    nodes: int
    gpus_per_node: int
    inside: Link
    between: Link

    def __post_init__(self) -> None:
        assert min(self.nodes, self.gpus_per_node) >= 1, self

    def placement(self, workers: int) -> tuple[int, int]:
        """Workers on each node and nodes in use: as few nodes as will do, all of them full where there are several.

        Raises:
            ValueError: the machine is too small, or the last node would be part empty.
        """
        if not 1 <= workers <= self.nodes * self.gpus_per_node:
            raise ValueError(f"{workers} workers, but the machine has {self.nodes} x {self.gpus_per_node} GPUs")
        if workers <= self.gpus_per_node:
            return workers, 1
        if workers % self.gpus_per_node:
            raise ValueError(f"{workers} workers do not fill nodes of {self.gpus_per_node} GPUs; take a multiple")
        return self.gpus_per_node, workers // self.gpus_per_node


def machine(
    *,
    nodes: int,
    gpus_per_node: int,
    inside: Mapping[str, Any] | None,
    between: Mapping[str, Any] | None,
) -> Machine:
    """The machine that a file in machines/ describes, by the names of its keys.

    Args:
        inside: as `Link`; None: nodes have one GPU.
        between: the same, of one network adapter, with `adapters_per_node`; None: there is one node.
    """
    assert (inside is None) == (gpus_per_node == 1), (inside, gpus_per_node)
    assert (between is None) == (nodes == 1), (between, nodes)
    return Machine(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        inside=_link(**inside) if inside else NO_LINK,
        between=_link(**between) if between else NO_LINK,
    )


def _link(*, bytes_per_second: float, adapters_per_node: float = 1, **latencies: Any) -> Link:
    return Link(bytes_per_second=adapters_per_node * bytes_per_second, **latencies)
