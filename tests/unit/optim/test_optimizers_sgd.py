"""SGD equals torch's, bit by bit, for any memory order of weights and gradients."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import profile

from pipeline.optim import sgd

SHAPES = [(4, 3, 3, 3), (8, 4, 1, 1), (5, 7), (6,), ()]


def _parameters(memory_format: torch.memory_format) -> list[nn.Parameter]:
    torch.manual_seed(0)
    values = [torch.randn(shape) for shape in SHAPES]
    return [nn.Parameter(t.to(memory_format=memory_format) if t.ndim == 4 else t) for t in values]


def _groups(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]


def _torchs(groups: list[dict[str, Any]], rate: float, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=rate, fused=True, **options)


def _steps(
    parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer, seeds: range, gradients: torch.memory_format
) -> list[Tensor]:
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for p in parameters:
            values = torch.randn(p.shape, generator=generator)
            p.grad = values.contiguous(memory_format=gradients) if p.ndim == 4 else values
        optimizer.step()
    return [p.detach().clone() for p in parameters]


@pytest.mark.parametrize("options", [{"momentum": 0.9, "nesterov": True}, {"momentum": 0.0, "nesterov": False}])
@pytest.mark.parametrize("weights", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("gradients", [torch.contiguous_format, torch.channels_last])
def test_the_bits_are_those_of_torch(
    options: dict[str, Any], weights: torch.memory_format, gradients: torch.memory_format
) -> None:
    ours, theirs = _parameters(weights), _parameters(weights)
    actual = _steps(ours, sgd(_groups(ours), 0.1, **options), range(4), gradients)
    # torch's kernel wants gradients in the strides of the weights.
    expected = _steps(theirs, _torchs(_groups(theirs), 0.1, **options), range(4), weights)
    assert all(torch.equal(one, other) for one, other in zip(actual, expected, strict=True))


def test_the_state_is_that_of_torch() -> None:
    """Names, shapes, strides and values; each continues from the other's."""
    ours, theirs = _parameters(torch.channels_last), _parameters(torch.channels_last)
    options: dict[str, Any] = {"momentum": 0.9, "nesterov": True}
    own, torchs = sgd(_groups(ours), 0.1, **options), _torchs(_groups(theirs), 0.1, **options)
    _steps(ours, own, range(2), torch.channels_last)
    _steps(theirs, torchs, range(2), torch.channels_last)
    saved, expected = (optimizer.state_dict()["state"] for optimizer in (own, torchs))
    assert saved.keys() == expected.keys()
    for key, state in saved.items():
        assert torch.equal(state["momentum_buffer"], expected[key]["momentum_buffer"])
        assert state["momentum_buffer"].stride() == expected[key]["momentum_buffer"].stride()
    own.load_state_dict(copy.deepcopy(torchs.state_dict()))
    actual = _steps(ours, own, range(2, 4), torch.channels_last)
    wanted = _steps(theirs, torchs, range(2, 4), torch.channels_last)
    assert all(torch.equal(one, other) for one, other in zip(actual, wanted, strict=True))


def test_nothing_is_copied() -> None:
    parameters = _parameters(torch.channels_last)
    optimizer = sgd(_groups(parameters), 0.1, momentum=0.9, nesterov=True)
    _steps(parameters, optimizer, range(1), torch.channels_last)
    with profile(acc_events=True) as profiled:  # torch 2.10 warns without it
        optimizer.step()
    assert "aten::copy_" not in {event.key for event in profiled.key_averages()}


def test_a_weight_without_a_gradient_stays() -> None:
    parameters = _parameters(torch.channels_last)
    before = parameters[0].detach().clone()
    optimizer = sgd(_groups(parameters), 0.1, momentum=0.9, nesterov=True)
    for p in parameters[1:]:
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert torch.equal(parameters[0], before)
