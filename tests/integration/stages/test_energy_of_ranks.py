"""The energy of several ranks counts every GPU once, by its rank, and every node once, by one of its ranks."""

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
    """A meter of a node whose processors used 10 J."""

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

    gathered: list[Energy] = []

    def all_gather(value: Any) -> list[Any]:
        if isinstance(value, str):
            return nodes
        gathered.append(value)
        return [value]

    monkeypatch.setattr(parallel, "measure_energy", metering)
    monkeypatch.setattr(distributed, "all_gather_object", all_gather)
    for rank in range(len(nodes)):
        world = World(rank=rank, size=len(nodes), device=torch.device("cpu"))
        with parallel._energy_of_all_ranks(world) as joules:
            joules()
    assert total_energy(gathered) == Energy(gpu=len(nodes), cpu=10.0 * len(set(nodes)), memory=None)
