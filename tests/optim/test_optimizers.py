"""Which parameters are decayed, and every optimizer of the registry on a problem with a known answer."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.config.base import Section
from pipeline.config.recipe import AdamwConfig, LambConfig, LarsConfig, MuonConfig, RadamConfig, SgdConfig
from pipeline.models import build
from pipeline.optim import OPTIMIZERS, lamb, lars, muon, parameter_groups, sgd

# The section of params.yaml that holds each optimizer's options; a new optimizer needs its own.
_CONFIGS: dict[str, Section] = {
    "adamw": AdamwConfig(name="adamw"),
    "lamb": LambConfig(name="lamb"),
    "lars": LarsConfig(name="lars"),
    "muon": MuonConfig(name="muon"),
    "radam": RadamConfig(name="radam"),
    "sgd": SgdConfig(),
}
# Rates at which 200 steps solve a small least-squares problem.
_RATES = {"adamw": 0.05, "lamb": 0.05, "lars": 0.05, "muon": 0.05, "radam": 0.05, "sgd": 0.05}
_OPTIMIZERS = pytest.mark.parametrize("name", OPTIMIZERS)


def _defaults(name: str) -> dict[str, Any]:
    return _CONFIGS[name].model_dump(exclude={"name"})


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    return build("resnet18", 10, stem="cifar", seed=0)


@pytest.mark.parametrize("decay_norm_and_bias", [True, False])
def test_groups_hold_every_parameter_once(resnet: nn.Module, decay_norm_and_bias: bool) -> None:
    groups = parameter_groups(resnet, weight_decay=0.1, decay_norm_and_bias=decay_norm_and_bias)
    held = sorted(id(parameter) for group in groups for parameter in group["params"])
    assert held == sorted(id(parameter) for parameter in resnet.parameters())


def test_norm_and_bias_are_exempt_where_asked(resnet: nn.Module) -> None:
    def decay_of(groups: list[dict[str, Any]]) -> dict[int, float]:
        return {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}

    exempt = decay_of(parameter_groups(resnet, weight_decay=0.1, decay_norm_and_bias=False))
    everything = decay_of(parameter_groups(resnet, weight_decay=0.1, decay_norm_and_bias=True))
    kinds = set()
    for module in resnet.modules():
        for name, parameter in module.named_parameters(recurse=False):
            kinds.add((type(module), name))
            spared = isinstance(module, nn.BatchNorm2d) or name == "bias"
            assert exempt[id(parameter)] == (0.0 if spared else 0.1)
            assert everything[id(parameter)] == 0.1
    assert kinds == {(nn.Conv2d, "weight"), (nn.BatchNorm2d, "weight"), (nn.BatchNorm2d, "bias")} | {
        (nn.Linear, "weight"),
        (nn.Linear, "bias"),
    }


@pytest.mark.parametrize("decay_norm_and_bias", [True, False])
def test_frozen_parameters_are_left_out(decay_norm_and_bias: bool) -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    groups = parameter_groups(model, weight_decay=0.1, decay_norm_and_bias=decay_norm_and_bias)
    assert [parameter is model.weight for group in groups for parameter in group["params"]] == [True]


@_OPTIMIZERS
def test_options_of_the_parameter_file_are_those_it_takes(name: str) -> None:
    model = nn.Linear(3, 1)
    groups = parameter_groups(model, weight_decay=0.1, decay_norm_and_bias=False)
    optimizer = OPTIMIZERS[name](groups, 0.25, **_defaults(name))
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


@_OPTIMIZERS
def test_a_quadratic_falls(name: str) -> None:
    inputs = torch.from_numpy(np.random.default_rng(0).normal(size=(64, 3)))
    targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    model = nn.Linear(3, 1, dtype=torch.float64)
    nn.init.constant_(model.weight, 0.1)
    groups = parameter_groups(model, weight_decay=0.0, decay_norm_and_bias=True)
    optimizer = OPTIMIZERS[name](groups, _RATES[name], **_defaults(name))
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.05 * losses[0]


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_sgd_is_the_textbook_formula(momentum: float, nesterov: bool) -> None:
    """v = momentum v + g + decay w; w -= rate v, or with Nesterov rate (g + decay w + momentum v)."""
    rate, decay = 0.1, 0.01
    rng = np.random.default_rng(1)
    w, gradients = rng.normal(size=(2, 3)), rng.normal(size=(3, 2, 3))
    parameter = nn.Parameter(torch.from_numpy(w.copy()))
    optimizer = sgd([{"params": [parameter], "weight_decay": decay}], rate, momentum=momentum, nesterov=nesterov)
    v = np.zeros_like(w)
    for g in gradients:
        parameter.grad = torch.from_numpy(g.copy())
        optimizer.step()
        decayed = g + decay * w
        v = momentum * v + decayed
        w -= rate * (decayed + momentum * v if nesterov else v)
        np.testing.assert_allclose(parameter.detach().numpy(), w, rtol=1e-13)


def test_lars_is_the_textbook_formula() -> None:
    """v = momentum v + rate x trust |w| / (|g| + decay |w|) x (g + decay w); w -= v (You et al. 2017, algorithm 1)."""
    rate, decay, momentum, trust = 0.5, 0.01, 0.9, 0.02
    rng = np.random.default_rng(1)
    w, gradients = rng.normal(size=(2, 3)), rng.normal(size=(3, 2, 3))
    parameter = nn.Parameter(torch.from_numpy(w.copy()))
    optimizer = lars(
        [{"params": [parameter], "weight_decay": decay}],
        rate,
        momentum=momentum,
        nesterov=False,
        trust_coefficient=trust,
    )
    v = np.zeros_like(w)
    for g in gradients:
        parameter.grad = torch.from_numpy(g.copy())
        optimizer.step()
        ratio = trust * np.linalg.norm(w) / (np.linalg.norm(g) + decay * np.linalg.norm(w))
        v = momentum * v + rate * ratio * (g + decay * w)
        w -= v
        np.testing.assert_allclose(parameter.detach().numpy(), w, rtol=1e-6)


def test_lamb_is_the_textbook_formula() -> None:
    """w -= rate |w| / |u| u with u = m^ / (sqrt(v^) + eps) + decay w (You et al. 2020, algorithm 2)."""
    rate, decay, beta1, beta2, eps = 0.1, 0.01, 0.9, 0.999, 1e-6
    rng = np.random.default_rng(2)
    w, gradients = rng.normal(size=(2, 3)), rng.normal(size=(3, 2, 3))
    parameter = nn.Parameter(torch.from_numpy(w.copy()))
    optimizer = lamb([{"params": [parameter], "weight_decay": decay}], rate, beta1=beta1, beta2=beta2, eps=eps)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, start=1):
        parameter.grad = torch.from_numpy(g.copy())
        optimizer.step()
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        u = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps) + decay * w
        w -= rate * np.linalg.norm(w) / np.linalg.norm(u) * u
        np.testing.assert_allclose(parameter.detach().numpy(), w, rtol=1e-6)


def test_lamb_leaves_clipping_to_the_recipe() -> None:
    """A gradient a thousand times as large gives the same first step."""
    weights = []
    for scale in (1.0, 1000.0):
        parameter = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
        optimizer = lamb([{"params": [parameter], "weight_decay": 0.0}], 0.1, beta1=0.9, beta2=0.999, eps=1e-12)
        parameter.grad = scale * torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
        optimizer.step()
        assert optimizer.param_groups[0]["max_grad_norm"] is None
        weights.append(parameter.detach().clone())
    torch.testing.assert_close(weights[0], weights[1])


def test_muon_steps_are_orthogonal() -> None:
    """All singular values of a filter's first step are nearly equal, whatever the gradient's are."""
    parameter = nn.Parameter(torch.zeros(4, 2, 3, 3))
    gradient = torch.from_numpy(
        np.random.default_rng(3).normal(size=(4, 18)) * np.array([[100.0], [10.0], [1.0], [0.1]])
    )
    optimizer = muon([{"params": [parameter], "weight_decay": 0.0}], 1.0, momentum=0.9, nesterov=False)
    parameter.grad = gradient.float().view(4, 2, 3, 3)
    optimizer.step()
    singular = torch.linalg.svdvals(parameter.detach().view(4, 18))
    assert float(singular.max() / singular.min()) < 5
    assert float(torch.linalg.svdvals(gradient).max() / torch.linalg.svdvals(gradient).min()) > 100
