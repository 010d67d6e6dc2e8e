"""Average gradients in two levels, within and between nodes, overlapped with the backward pass."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.distributed.collectives import all_gather_object, collective_timeout
from pipeline.distributed.compression import Bucket, Compression

AsyncRunner = Callable[[Tensor, Callable[[], None]], torch.futures.Future[Tensor]]
"""Runs work asynchronously, in the order of the calls; the future holds the tensor, which the work overwrites."""


def thread_runner() -> AsyncRunner:
    """Run work on a separate thread, which may wait for other ranks; errors end the backward pass as RuntimeError."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="exchange")

    def start(result: Tensor, work: Callable[[], None]) -> torch.futures.Future[Tensor]:
        done: torch.futures.Future[Tensor] = torch.futures.Future()

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the future carries it
                done.set_exception(error)  # type: ignore[arg-type]
            else:
                done.set_result(result)

        thread.submit(run)
        return done

    return start


def stream_runner(device: torch.device) -> AsyncRunner:
    """Run work on a separate CUDA stream; this thread only queues it."""
    stream = torch.cuda.Stream(device)

    def start(result: Tensor, work: Callable[[], None]) -> torch.futures.Future[Tensor]:
        stream.wait_stream(torch.cuda.current_stream(device))
        done: torch.futures.Future[Tensor] = torch.futures.Future(devices=[device])
        with torch.cuda.stream(stream):
            work()
            done.set_result(result)
        return done

    return start


@dataclass(frozen=True, kw_only=True)
class NodeGroups:
    """The process groups of a run's nodes, from this rank's view.

    Attributes:
        n_nodes: number of nodes.
        leader: rank of this node's leader.
        local: group of the ranks of this node.
        leaders: group of all leaders; None on ranks that do not lead.
    """

    n_nodes: int
    leader: int
    local: dist.ProcessGroup
    leaders: dist.ProcessGroup | None


def ranks_by_node() -> list[list[int]]:
    """Return the ranks of each node, in order; a node is one torchrun agent."""
    nodes: dict[int, list[int]] = {}
    for rank, node in enumerate(all_gather_object(int(os.environ.get("GROUP_RANK", "0")))):
        nodes.setdefault(node, []).append(rank)
    return [nodes[node] for node in sorted(nodes)]


def node_groups(timeout_seconds: float) -> NodeGroups:
    """Build the node groups of all ranks, whose collectives fail like those of all ranks; all ranks call it."""
    world = dist.group.WORLD
    assert world is not None
    return _build_node_groups(world, timeout_seconds)


@lru_cache(maxsize=1)
def _build_node_groups(_world: dist.ProcessGroup, timeout_seconds: float) -> NodeGroups:
    """Build the groups once per process group: a study trains many runs, and groups are not released before the end."""
    nodes, rank, timeout = ranks_by_node(), dist.get_rank(), collective_timeout(timeout_seconds)
    # Every rank makes every group, in one order.
    groups: list[Any] = [dist.new_group(ranks, timeout) for ranks in nodes]
    leaders: Any = dist.new_group([ranks[0] for ranks in nodes], timeout)
    here = next(index for index, ranks in enumerate(nodes) if rank in ranks)
    leader = nodes[here][0]
    return NodeGroups(
        n_nodes=len(nodes), leader=leader, local=groups[here], leaders=leaders if rank == leader else None
    )  # fmt: skip


def hierarchical_average(bucket: Bucket, compression: Compression, nodes: NodeGroups) -> None:
    """Replace a bucket's content by its mean over all ranks; each node sends its sum once.

    Nodes may have different numbers of ranks.
    """
    buffer = bucket.buffer()
    dist.reduce(buffer, dst=nodes.leader, group=nodes.local)
    if nodes.leaders is not None:
        # The mean over nodes of the scaled sums is the mean over ranks.
        buffer.mul_(nodes.n_nodes / dist.get_world_size())
        compression.average(bucket, nodes.leaders).wait()
    dist.broadcast(buffer, src=nodes.leader, group=nodes.local)
