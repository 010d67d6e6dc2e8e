"""Ranks: the only package that talks to torch.distributed or reads its environment variables.

Everything is a no-op on one process, so callers have one code path. Tensors are reduced in place
where the name ends in an underscore.
"""

from pipeline.distributed.agreement import Agreement
from pipeline.distributed.arithmetic import float32_arithmetic
from pipeline.distributed.averaging import data_parallel, defer_reduction
from pipeline.distributed.collectives import (
    all_gather,
    all_reduce_sum_,
    any_rank,
    barrier,
    broadcast,
    launched,
    ranks_on_this_node,
)
from pipeline.distributed.compression import Compression, CompressionKind
from pipeline.distributed.nodes import ranks_by_node
from pipeline.distributed.process_group import Ranks, expect_answers_within, session, threads_for
from pipeline.distributed.torchrun import WorkerPlan, choose_workers, joining_ranks, launch, local_gpus
from pipeline.distributed.transport import Transport
from pipeline.distributed.tree_sum import pairwise_sum, tree_sum_

__all__ = [
    "Agreement",
    "Compression",
    "CompressionKind",
    "Ranks",
    "Transport",
    "WorkerPlan",
    "all_gather",
    "all_reduce_sum_",
    "any_rank",
    "barrier",
    "broadcast",
    "choose_workers",
    "data_parallel",
    "defer_reduction",
    "expect_answers_within",
    "float32_arithmetic",
    "joining_ranks",
    "launch",
    "launched",
    "local_gpus",
    "pairwise_sum",
    "ranks_by_node",
    "ranks_on_this_node",
    "session",
    "threads_for",
    "tree_sum_",
]
