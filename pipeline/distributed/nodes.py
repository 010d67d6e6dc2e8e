"""Nodes of a run, and gradients averaged over them in two levels."""

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

import torch.distributed as dist

from pipeline.distributed.collectives import all_gather
from pipeline.distributed.compression import Bucket, Compression


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """This rank's place among the nodes of a run.

    Attributes:
        count: nodes.
        leader: the rank that speaks for this rank's node.
        own: the ranks of this node.
        leaders: one rank of each node; None on ranks that are none of them.
    """

    count: int
    leader: int
    own: dist.ProcessGroup
    leaders: dist.ProcessGroup | None


def ranks_by_node() -> list[list[int]]:
    """The ranks on each node, in their order; torchrun's agents are the nodes."""
    nodes: dict[int, list[int]] = {}
    for rank, node in enumerate(all_gather(int(os.environ.get("GROUP_RANK", "0")))):
        nodes.setdefault(node, []).append(rank)
    return [nodes[node] for node in sorted(nodes)]


def nodes_of_run(timeout_seconds: float) -> Nodes:
    """Of the ranks that have joined; all ranks call it. Exchanges within and between them fail after the timeout."""
    world = dist.group.WORLD
    assert world is not None
    return _nodes_within(world, timeout_seconds)


@lru_cache(maxsize=1)
def _nodes_within(_world: dist.ProcessGroup, timeout_seconds: float) -> Nodes:
    """Once for a process group: a study trains many cells, and no group is given back before the end."""
    nodes, rank, timeout = ranks_by_node(), dist.get_rank(), timedelta(seconds=timeout_seconds)
    # Every rank makes every group, in one order.
    groups: list[Any] = [dist.new_group(ranks, timeout) for ranks in nodes]
    leaders: Any = dist.new_group([ranks[0] for ranks in nodes], timeout)
    here = next(index for index, ranks in enumerate(nodes) if rank in ranks)
    leader = nodes[here][0]
    return Nodes(
        count=len(nodes), leader=leader, own=groups[here], leaders=leaders if rank == leader else None
    )  # fmt: skip


def average_by_node(bucket: Bucket, compression: Compression, nodes: Nodes) -> None:
    """Replace a bucket's content by its mean over all ranks: what a node's ranks have in common is sent once.

    Nodes may have different numbers of ranks.
    """
    buffer = bucket.buffer()
    dist.reduce(buffer, dst=nodes.leader, group=nodes.own)
    if nodes.leaders is not None:
        # The mean over nodes of this is the sum over ranks by their number.
        buffer.mul_(nodes.count / dist.get_world_size())
        compression.average(bucket, nodes.leaders).wait()
    dist.broadcast(buffer, src=nodes.leader, group=nodes.own)
