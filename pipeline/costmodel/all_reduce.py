"""Seconds of an all-reduce in the latency-bandwidth model.

Of n bytes over p workers on links of latency a and bandwidth b:

* ring (Patarasuk and Yuan 2009, J. Parallel Distrib. Comput. 69): 2(p - 1) a + 2 (p - 1)/p n/b. Every worker sends n/p
  bytes to its neighbour p - 1 times to reduce and p - 1 times to gather.
* double binary tree (Sanders, Speck and Traeff 2009, Parallel Computing 35): 2 ceil(log2 p) t + 2 n/b. Each of two
  trees carries half of the bytes up and down; whoever is a leaf of one is an inner node of the other, so that all links
  are busy in both directions. Bytes flow in a pipeline, whose filling is the latency: t, of a hop, is that of a chunk
  (`Link.tree_hop_seconds`).

Across nodes, workers stand in the order of their nodes, so that each byte enters and leaves a node once. A flat ring or
tree has the bandwidth of its slowest link and the latency of those that a byte passes in turn. Its hops are those of
NCCL's tuning model (src/graph/tuning.cc): its tree joins nodes, and in each of them the GPUs stand in a chain. That
model also nearly doubles the latency of a ring across nodes for large messages, and gives trees less than the whole
bandwidth, of middle-sized ones as little as half. Neither is done here, which flatters both.

Hierarchical ones run a ring inside every node, whose reduce-scatter leaves 1/g of the bytes to each of g GPUs, then g
all-reduces between nodes that share the adapters, n bytes in all, then the gathering half of the ring. The trainer's
own `hierarchical` exchange is `leader`: the GPUs of a node send their bytes to one of them, along a pipelined chain
of g - 1 hops, a ring of these leaders adds them up, and the sum goes back along the chains. That one GPU drives all
adapters of its node flatters it.
"""

from collections.abc import Callable, Mapping

from pipeline.costmodel.machine import Link, Machine


def ring_seconds(n_bytes: float, workers: int, link: Link) -> float:
    """A ring over equal links; 0 for one worker."""
    hops = 2 * (workers - 1)
    return hops * link.latency_seconds + hops / workers * n_bytes / link.bytes_per_second


def tree_seconds(n_bytes: float, workers: int, link: Link) -> float:
    """A double binary tree over equal links; 0 for one worker."""
    if workers == 1:
        return 0.0
    return 2 * _depth(workers) * link.tree_hop_seconds + 2 * n_bytes / link.bytes_per_second


def _ring(n_bytes: float, workers: int, machine: Machine) -> float:
    per_node, nodes = machine.placement(workers)
    # A byte's way round passes between nodes 2(nodes - 1) times, and for the rest inside them.
    inside = 2 * (workers - nodes) * machine.inside.latency_seconds
    between = 2 * (nodes - 1) * machine.between.latency_seconds
    return inside + between + 2 * (workers - 1) / workers * n_bytes / _slowest(machine, per_node, nodes)


def _tree(n_bytes: float, workers: int, machine: Machine) -> float:
    per_node, nodes = machine.placement(workers)
    if workers == 1:
        return 0.0
    inside = 2 * (per_node - 1) * machine.inside.tree_hop_seconds
    between = 2 * _depth(nodes) * machine.between.tree_hop_seconds
    return inside + between + 2 * n_bytes / _slowest(machine, per_node, nodes)


def _hierarchical_ring(n_bytes: float, workers: int, machine: Machine) -> float:
    per_node, nodes = machine.placement(workers)
    return ring_seconds(n_bytes, per_node, machine.inside) + ring_seconds(n_bytes, nodes, machine.between)


def _hierarchical_tree(n_bytes: float, workers: int, machine: Machine) -> float:
    per_node, nodes = machine.placement(workers)
    return ring_seconds(n_bytes, per_node, machine.inside) + tree_seconds(n_bytes, nodes, machine.between)


def _leader(n_bytes: float, workers: int, machine: Machine) -> float:
    per_node, nodes = machine.placement(workers)
    to_leader = 0.0
    if per_node > 1:
        to_leader = (per_node - 1) * machine.inside.latency_seconds + n_bytes / machine.inside.bytes_per_second
    return 2 * to_leader + ring_seconds(n_bytes, nodes, machine.between)


ALL_REDUCE: Mapping[str, Callable[[float, int, Machine], float]] = {
    "ring": _ring,
    "tree": _tree,
    "hierarchical_ring": _hierarchical_ring,
    "hierarchical_tree": _hierarchical_tree,
    "leader": _leader,
}
"""Seconds of (bytes, workers, machine). Hierarchical: a ring inside nodes, and between them what the name says.

Each raises ValueError where the workers do not fit the machine (`Machine.placement`).
"""


def _depth(workers: int) -> int:
    """ceil(log2(workers))."""
    return (workers - 1).bit_length()


def _slowest(machine: Machine, per_node: int, nodes: int) -> float:
    used = [link for link, count in ((machine.inside, per_node), (machine.between, nodes)) if count > 1]
    return min((link.bytes_per_second for link in used), default=float("inf"))
