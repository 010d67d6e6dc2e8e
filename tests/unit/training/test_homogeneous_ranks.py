"""Ranks of two kinds are refused where bits are promised; tests with torchrun are in tests/integration/distributed."""

import socket
from typing import Any

import pytest
import torch

from pipeline import distributed
from pipeline.errors import InputError
from pipeline.training.homogeneous_ranks import check_homogeneous_ranks

_CPU = torch.device("cpu")


def _pretend(monkeypatch: pytest.MonkeyPatch, *others: dict[str, Any]) -> None:
    """Give this process ranks that differ in some facts."""
    monkeypatch.setattr(distributed, "all_gather_object", lambda own: [own, *(own | other for other in others)])


def test_equal_ranks_on_other_hosts_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, {"host": "b"}, {"host": "c"})
    check_homogeneous_ranks(_CPU)


@pytest.mark.parametrize("fact", ["torch", "numpy", "pillow", "device", "arithmetic", "threads", "training code"])
def test_the_first_rank_that_differs_is_named(fact: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, {"host": "b"}, {"host": "c", fact: "other"}, {"host": "d", fact: "another"})
    with pytest.raises(InputError) as raised:
        check_homogeneous_ranks(_CPU)
    message = str(raised.value)
    assert raised.value.key == "reduction"
    assert f"rank 2 on c has {fact} other, and rank 0 on {socket.gethostname()} has {fact} " in message
    assert "\n" not in message
