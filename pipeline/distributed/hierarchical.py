"""All-reduce within and between nodes, overlapped with the backward pass."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.distributed.collectives import all_gather
from pipeline.distributed.compression import Bucket, Compression

# Work beside the backward pass, one piece after another: on a thread, or on a stream of a GPU.


AsyncRunner = Callable[[Tensor, Callable[[], None]], torch.futures.Future[Tensor]]
"""Starts what is given, after what was given before; promises the tensor, which that overwrites."""


def thread_runner() -> AsyncRunner:
    """A thread of its own, which may wait for other ranks; what it raises ends the backward pass as a RuntimeError."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="exchange")

    def start(result: Tensor, work: Callable[[], None]) -> torch.futures.Future[Tensor]:
        done: torch.futures.Future[Tensor] = torch.futures.Future()

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - nobody hears a thread
                done.set_exception(error)  # type: ignore[arg-type]
            else:
                done.set_result(result)

        thread.submit(run)
        return done

    return start


def stream_runner(device: torch.device) -> AsyncRunner:
    """A CUDA stream of its own: this thread only queues the work."""
    stream = torch.cuda.Stream(device)

    def start(result: Tensor, work: Callable[[], None]) -> torch.futures.Future[Tensor]:
        stream.wait_stream(torch.cuda.current_stream(device))
        done: torch.futures.Future[Tensor] = torch.futures.Future(devices=[device])
        with torch.cuda.stream(stream):
            work()
            done.set_result(result)
        return done

    return start


# Nodes of a run, and gradients averaged over them in two levels.


@dataclass(frozen=True, kw_only=True)
class NodeGroups:
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


def node_groups(timeout_seconds: float) -> NodeGroups:
    """Of the ranks that have joined; all ranks call it. Exchanges within and between them fail after the timeout."""
    world = dist.group.WORLD
    assert world is not None
    return _nodes_within(world, timeout_seconds)


@lru_cache(maxsize=1)
def _nodes_within(_world: dist.ProcessGroup, timeout_seconds: float) -> NodeGroups:
    """Once for a process group: a study trains many cells, and no group is given back before the end."""
    nodes, rank, timeout = ranks_by_node(), dist.get_rank(), timedelta(seconds=timeout_seconds)
    # Every rank makes every group, in one order.
    groups: list[Any] = [dist.new_group(ranks, timeout) for ranks in nodes]
    leaders: Any = dist.new_group([ranks[0] for ranks in nodes], timeout)
    here = next(index for index, ranks in enumerate(nodes) if rank in ranks)
    leader = nodes[here][0]
    return NodeGroups(
        count=len(nodes), leader=leader, own=groups[here], leaders=leaders if rank == leader else None
    )  # fmt: skip


def hierarchical_average(bucket: Bucket, compression: Compression, nodes: NodeGroups) -> None:
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
