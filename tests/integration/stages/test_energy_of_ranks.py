"""Energy of several ranks: every GPU by its own rank, and what ranks of a node share by one of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from pipeline import distributed
from pipeline.distributed import World
from pipeline.energy import Energy, EnergyMeter, total_energy
from pipeline.stages import parallel


class _Meter(EnergyMeter):
    """A node that drew 10 J in its processors."""

    def __init__(self, *, node: bool) -> None:
        self._node = node

    def read(self) -> Energy:
        return Energy(gpu=1.0, cpu=10.0 if self._node else 0.0)


@pytest.mark.parametrize("nodes", [["a"], ["a", "a", "b", "b"], ["a", "a", "b"], ["b", "a", "a", "b"]])
def test_every_node_is_counted_by_one_of_its_ranks(monkeypatch: pytest.MonkeyPatch, nodes: list[str]) -> None:
    @contextmanager
    def metering(*, gpu: str | None, node: bool) -> Iterator[EnergyMeter]:
        assert gpu is None
        yield _Meter(node=node)

    said: list[Energy] = []

    def all_gather(value: Any) -> list[Any]:
        if isinstance(value, str):
            return nodes
        said.append(value)
        return [value]

    monkeypatch.setattr(parallel, "measure_energy", metering)
    monkeypatch.setattr(distributed, "all_gather", all_gather)
    for rank in range(len(nodes)):
        ranks = World(rank=rank, count=len(nodes), device=torch.device("cpu"))
        with parallel._metering_ranks(ranks) as joules:
            joules()
    assert total_energy(said) == Energy(gpu=len(nodes), cpu=10.0 * len(set(nodes)), memory=None)
