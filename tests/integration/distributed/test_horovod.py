"""Horovod as a missing library, and as one that records its calls.

Where it is installed, test_communication.py compares it with DDP.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipeline import distributed
from pipeline.distributed import horovod
from pipeline.distributed.horovod import HorovodDataParallel
from tests.fixtures.training import command, run, write_project

_CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_it_is_missed_by_those_that_would_use_it(workers: int, tmp_path: Path) -> None:
    """One process exchanges nothing, with any library."""
    (tmp_path / "horovod.py").write_text("raise ImportError('no Horovod')\n")
    write_project(
        tmp_path,
        study={"models": ["small_cnn"], "arms": ["full"], "seeds": [0]},
        train={"communication": {"library": "horovod"}, "simulated_workers": 2, "workers": workers},
    )
    done = run(command("train", tmp_path), environ={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == (0 if workers == 1 else 2), done.stderr
    errors = [line for line in done.stderr.splitlines() if "communication.library: horovod, which cannot" in line]
    assert len(errors) == workers - 1, done.stderr


class _FakeHorovod:
    """Records calls, and doubles gradients at `synchronize` in place of averaging them."""

    Average = object()

    def __init__(self) -> None:
        self.sent: list[tuple[str, Tensor]] = []
        self.awaited: list[int] = []

    def allreduce_async_(self, tensor: Tensor, *, name: str, op: object) -> int:
        assert op is self.Average
        self.sent.append((name, tensor))
        return len(self.sent) - 1

    def synchronize(self, handle: int) -> None:
        self.awaited.append(handle)
        self.sent[handle][1].mul_(2)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> _FakeHorovod:
    made = _FakeHorovod()
    monkeypatch.setattr(horovod, "_joined", lambda *_: made)
    return made


def _network() -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    return network.to(memory_format=torch.channels_last)


def _backward(network: nn.Module, *, defer: bool = False) -> None:
    with distributed.gradient_sync(network, enabled=not defer):
        network(torch.ones(2, 3, 4, 4)).sum().backward()


def test_gradients_are_sent_only_with_the_last_pass(library: _FakeHorovod) -> None:
    plain, network = _network(), _network()
    averaged = HorovodDataParallel(network, _CPU, 1.0)
    for defer in (True, True, False):
        _backward(plain)
        assert library.sent == []
        _backward(averaged, defer=defer)
    assert sorted(name for name, _ in library.sent) == sorted(name for name, _ in network.named_parameters())
    for expected, averaged_parameter in zip(plain.parameters(), network.parameters(), strict=True):
        assert expected.grad is not None
        assert averaged_parameter.grad is not None
        assert torch.equal(averaged_parameter.grad, 2 * expected.grad)


def test_a_failed_exchange_is_not_awaited_later(library: _FakeHorovod) -> None:
    network = _network()
    averaged = HorovodDataParallel(network, _CPU, 1.0)
    with pytest.raises(ZeroDivisionError), distributed.gradient_sync(averaged, enabled=True):
        _fail_after(averaged)
    n = len(library.sent)
    network.zero_grad()
    _backward(averaged)
    assert len(library.sent) == 2 * n
    assert library.awaited == list(range(n, 2 * n))


def _fail_after(network: nn.Module) -> None:
    network(torch.ones(2, 3, 4, 4)).sum().backward()
    raise ZeroDivisionError
