"""The only package that calls torch.distributed or reads its environment variables.

Everything is a no-op on one process, so callers have one code path. A trailing underscore marks functions that reduce
tensors in place.
"""

from pipeline.distributed.collectives import (
    FlagSync,
    all_gather,
    all_reduce_sum_,
    any_rank,
    arrive,
    barrier,
    broadcast,
    launched_by_torchrun,
    local_world_size,
    pairwise_sum,
    rank_ordered_sum_,
)
from pipeline.distributed.compression import Compression, CompressionKind
from pipeline.distributed.data_parallel import CommConfig, data_parallel, defer_reduction
from pipeline.distributed.exact_sum import (
    Grids,
    OverlappedSum,
    largest_finite,
    max_over_ranks_,
    ordered_sum,
    sum_over_ranks_,
)
from pipeline.distributed.hierarchical import NodeGroups, node_groups, ranks_by_node
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
    float32_arithmetic,
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
    "NodeGroups",
    "OverlappedSum",
    "World",
    "all_gather",
    "all_reduce_sum_",
    "alone_in_process",
    "any_rank",
    "arrive",
    "barrier",
    "broadcast",
    "check_openmp",
    "choose_workers",
    "data_parallel",
    "defer_reduction",
    "float32_arithmetic",
    "join_process_group",
    "largest_finite",
    "launch",
    "launched_by_torchrun",
    "local_gpus",
    "local_world_size",
    "max_over_ranks_",
    "node_groups",
    "ordered_sum",
    "pairwise_sum",
    "participating_ranks",
    "rank_ordered_sum_",
    "ranks_by_node",
    "set_collective_timeout",
    "sum_over_ranks_",
    "threads_per_process",
    "visible_gpus",
]
