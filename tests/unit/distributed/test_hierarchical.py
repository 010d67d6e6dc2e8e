"""Which process groups the ranks of several nodes build."""

from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from pipeline.distributed import hierarchical


@pytest.mark.parametrize(("backend", "factor"), [("gloo", 1), ("nccl", 3)])
def test_groups_of_nodes_wait_as_long_as_that_of_all(
    monkeypatch: pytest.MonkeyPatch, backend: str, factor: int
) -> None:
    """The watch of the ranks ends a run before a timeout of NCCL does."""
    made: list[tuple[list[int], timedelta]] = []

    def new_group(ranks: list[int], timeout: timedelta) -> tuple[int, ...]:
        made.append((ranks, timeout))
        return tuple(ranks)

    world: Any = object()
    monkeypatch.setattr(hierarchical, "ranks_by_node", lambda: [[0, 1], [2, 3]])
    for name, value in {"get_rank": lambda: 2, "get_backend": lambda: backend, "new_group": new_group}.items():
        monkeypatch.setattr(dist, name, value)
    groups: Any = hierarchical._build_node_groups.__wrapped__(world, 7.0)
    assert made == [(ranks, timedelta(seconds=7 * factor)) for ranks in ([0, 1], [2, 3], [0, 2])]
    assert (groups.local, groups.leaders, groups.n_nodes) == ((2, 3), (0, 2), 2)
