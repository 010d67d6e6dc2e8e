"""The only package that calls torch.distributed or reads its environment variables.

Everything is a no-op on one process, so callers have one code path. A trailing underscore marks functions that reduce
tensors in place.
"""

from pipeline.distributed.collectives import (
    FlagSync,
    all_gather_object,
    all_reduce_max_,
    all_reduce_pairwise_,
    all_reduce_sum_,
    any_rank,
    arrive,
    barrier,
    broadcast_object,
    gather_object,
    launched_by_torchrun,
    local_world_size,
    pairwise_sum,
)
from pipeline.distributed.compression import Compression, CompressionKind
from pipeline.distributed.data_parallel import CommConfig, data_parallel, gradient_sync
from pipeline.distributed.exact_sum import (
    Grids,
    OverlappedSum,
    all_reduce_buckets_,
    largest_finite,
    pairwise_sum_over_ranks,
)
from pipeline.distributed.float32 import float32_arithmetic
from pipeline.distributed.hierarchical import node_groups, ranks_by_node
from pipeline.distributed.launch import (
    SHARED_GPU,
    LaunchPlan,
    choose_workers,
    launch,
    local_gpus,
    participating_ranks,
    visible_gpus,
)
from pipeline.distributed.openmp import check_openmp
from pipeline.distributed.process_group import (
    World,
    alone_in_process,
    join_process_group,
    set_collective_timeout,
    threads_per_process,
)

__all__ = [
    "SHARED_GPU",
    "CommConfig",
    "Compression",
    "CompressionKind",
    "FlagSync",
    "Grids",
    "LaunchPlan",
    "OverlappedSum",
    "World",
    "all_gather_object",
    "all_reduce_buckets_",
    "all_reduce_max_",
    "all_reduce_pairwise_",
    "all_reduce_sum_",
    "alone_in_process",
    "any_rank",
    "arrive",
    "barrier",
    "broadcast_object",
    "check_openmp",
    "choose_workers",
    "data_parallel",
    "float32_arithmetic",
    "gather_object",
    "gradient_sync",
    "join_process_group",
    "largest_finite",
    "launch",
    "launched_by_torchrun",
    "local_gpus",
    "local_world_size",
    "node_groups",
    "pairwise_sum",
    "pairwise_sum_over_ranks",
    "participating_ranks",
    "ranks_by_node",
    "set_collective_timeout",
    "threads_per_process",
    "visible_gpus",
]
