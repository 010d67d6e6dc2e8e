"""Which parameters are decayed, and every optimizer of the registry on a problem with a known answer."""

import io
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.config.optimization import OptimizerConfig
from pipeline.models import build_network
from pipeline.models.layers import GroupedBatchNorm2d
from pipeline.optim import OPTIMIZERS, lamb, lars, parameter_groups, sgd

# The sections of params.yaml that hold each optimizer's options, by their names.
_SECTIONS = {
    get_args(section.model_fields["name"].annotation)[0]: section for section in get_args(get_args(OptimizerConfig)[0])
}
# A rate at which 200 steps of every optimizer solve a small least-squares problem.
_RATE = 0.05
_OPTIMIZERS = pytest.mark.parametrize("name", OPTIMIZERS)


def test_the_parameter_file_names_every_optimizer() -> None:
    assert set(_SECTIONS) == set(OPTIMIZERS)


def _defaults(name: str) -> dict[str, Any]:
    options: dict[str, Any] = _SECTIONS[name](name=name).model_dump(exclude={"name"})
    return options


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    return build_network("resnet18", 10, stem="cifar", seed=0)


@pytest.mark.parametrize("decay_norm_and_bias", [True, False])
def test_groups_hold_every_parameter_once(resnet: nn.Module, decay_norm_and_bias: bool) -> None:
    groups = parameter_groups(resnet, weight_decay=0.1, decay_norm_and_bias=decay_norm_and_bias)
    grouped = sorted(id(parameter) for group in groups for parameter in group["params"])
    assert grouped == sorted(id(parameter) for parameter in resnet.parameters())


def test_norm_and_bias_are_exempt_where_asked(resnet: nn.Module) -> None:
    def decay_of(groups: list[dict[str, Any]]) -> dict[int, float]:
        return {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}

    exempt = decay_of(parameter_groups(resnet, weight_decay=0.1, decay_norm_and_bias=False))
    everything = decay_of(parameter_groups(resnet, weight_decay=0.1, decay_norm_and_bias=True))
    kinds = set()
    for module in resnet.modules():
        for name, parameter in module.named_parameters(recurse=False):
            spared = isinstance(module, nn.BatchNorm2d) or name == "bias"
            kinds.add((nn.Conv2d if isinstance(module, nn.Conv2d) else type(module), name))
            assert exempt[id(parameter)] == (0.0 if spared else 0.1)
            assert everything[id(parameter)] == 0.1
    assert kinds == {(nn.Conv2d, "weight"), (GroupedBatchNorm2d, "weight"), (GroupedBatchNorm2d, "bias")} | {
        (nn.Linear, "weight"),
        (nn.Linear, "bias"),
    }


@pytest.mark.parametrize("shape", [(1, 1, 8), (1, 5, 8), (8, 1, 1)])
def test_tokens_positions_and_scales_are_vectors(shape: tuple[int, ...]) -> None:
    """As a vision transformer and ConvNeXt have them; Muon would orthogonalize a single row."""
    model = nn.Module()
    model.own, model.matrix = nn.Parameter(torch.zeros(shape)), nn.Parameter(torch.zeros(8, 1, 3, 3))
    matrices, vectors = parameter_groups(model, weight_decay=0.1, decay_norm_and_bias=False)
    assert (matrices["params"], matrices["hidden"]) == ([model.matrix], True)
    assert (vectors["params"], vectors["hidden"], vectors["weight_decay"]) == ([model.own], False, 0.0)


@pytest.mark.parametrize("decay_norm_and_bias", [True, False])
@pytest.mark.parametrize("network", ["resnet18", "resnet50", "small_cnn"])
@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
def test_all_matrices_but_those_of_the_outer_layers_are_hidden(
    network: str, stem: Any, decay_norm_and_bias: bool
) -> None:
    model = build_network(network, 10, stem=stem, seed=0)
    outer = model.input_layer, model.output_layer
    groups = parameter_groups(
        model, weight_decay=0.1, decay_norm_and_bias=decay_norm_and_bias, outer_layers=outer
    )  # fmt: skip
    hidden = {id(parameter) for group in groups if group["hidden"] for parameter in group["params"]}
    first, last = (
        next(m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))),
        [m for m in model.modules() if isinstance(m, nn.Linear)][-1],
    )
    assert (first.weight.shape[1], last.weight.shape[0]) == (3, 10)
    matrices = {id(parameter) for parameter in model.parameters() if parameter.ndim > 1}
    assert hidden == matrices - {id(first.weight), id(last.weight)}


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
    # A rate of LARS multiplies its coefficient.
    rate = _RATE / (10 * _defaults(name).get("trust_coefficient", 0.1))
    optimizer = OPTIMIZERS[name](groups, rate, **_defaults(name))
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.05 * losses[0]


class _Run:
    """A small network with a filter, a matrix and vectors, on gradients that a seed decides."""

    def __init__(self, name: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.parameters = [
            nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((4, 2, 3, 3), (3, 4), (3,))
        ]
        decayed, exempt = self.parameters[:2], self.parameters[2:]
        groups: list[dict[str, Any]] = [
            {"params": decayed, "weight_decay": 0.1, "hidden": True},
            {"params": exempt, "weight_decay": 0.0, "hidden": False},
        ]
        self.optimizer = OPTIMIZERS[name](groups, _RATE, **_defaults(name))

    def step(self, seed: int, *, rate: float = _RATE) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    @property
    def weights(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.parameters])


@_OPTIMIZERS
def test_a_resumed_optimizer_goes_on_to_the_same_bits(name: str) -> None:
    """From plain values alone: what a checkpoint holds."""
    straight, stopped, resumed = (_Run(name) for _ in range(3))
    for seed in range(6):
        straight.step(seed)
    for seed in range(3):
        stopped.step(seed)
    buffer = io.BytesIO()
    torch.save({"weights": stopped.parameters, "optimizer": stopped.optimizer.state_dict()}, buffer)
    saved = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
    with torch.no_grad():
        for parameter, value in zip(resumed.parameters, saved["weights"], strict=True):
            parameter.copy_(value)
    resumed.optimizer.load_state_dict(saved["optimizer"])
    for seed in range(3, 6):
        resumed.step(seed)
    assert torch.equal(resumed.weights, straight.weights)


@_OPTIMIZERS
def test_the_rate_is_that_of_the_step(name: str) -> None:
    """Schedules set it at each step; at a rate of zero nothing moves, including weight decay."""
    run = _Run(name)
    before = run.weights
    run.step(0, rate=0.0)
    assert torch.equal(run.weights, before)
    run.step(1)
    assert not torch.equal(run.weights, before)


@_OPTIMIZERS
def test_decay_shrinks_what_it_acts_on(name: str) -> None:
    """With a gradient of almost nothing, so that momentum and its rescaling have nothing to say."""
    decayed = [nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(3))]
    exempt = [nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(3))]
    for parameters, decay in ((decayed, 0.5), (exempt, 0.0)):
        matrix, vector = parameters
        groups: list[dict[str, Any]] = [
            {"params": [matrix], "weight_decay": decay, "hidden": True},
            {"params": [vector], "weight_decay": decay, "hidden": False},
        ]
        optimizer = OPTIMIZERS[name](groups, _RATE, **_defaults(name))
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 1e-30)
        optimizer.step()
    assert all(
        float(one.detach().mean()) < float(other.detach().mean()) for one, other in zip(decayed, exempt, strict=True)
    )


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


@pytest.mark.parametrize("decay_norm_and_bias", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_lamb_scales_filters_whether_they_are_decayed_or_not(weight_decay: float, decay_norm_and_bias: bool) -> None:
    """The first step of a matrix is rate x |w| long; that of exempt vectors is Adam's."""
    layer = nn.Linear(4, 4)
    nn.init.ones_(layer.weight)
    nn.init.constant_(layer.bias, 7.0)
    for parameter in layer.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    groups = parameter_groups(layer, weight_decay=weight_decay, decay_norm_and_bias=decay_norm_and_bias)
    lamb(groups, 0.1, beta1=0.9, beta2=0.999, eps=1e-6).step()
    assert float((layer.weight.detach() - 1).norm()) == pytest.approx(0.1 * 4.0, rel=1e-4)
    scaled = 0.1 * 14.0 if decay_norm_and_bias else 0.1 * 2.0
    assert float((layer.bias.detach() - 7).norm()) == pytest.approx(scaled, rel=1e-4)


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


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lars_scales_filters_whether_they_are_decayed_or_not(weight_decay: float) -> None:
    """A step of momentum 0 is rate x trust x |w| long where nothing is decayed."""
    weight = torch.nn.Parameter(torch.ones(4, 4))
    weight.grad = torch.full_like(weight, 100.0)
    options = {"momentum": 0.0, "nesterov": False, "trust_coefficient": 0.01}
    groups = [{"params": [weight], "weight_decay": weight_decay}]
    OPTIMIZERS["lars"](groups, 1.0, **options).step()
    moved = float((weight.detach() - 1).norm())
    assert moved == pytest.approx(0.01 * 4.0, rel=0.05)
