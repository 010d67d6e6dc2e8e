"""Muon against singular values, against timm's on the same matrices, and in a network."""

import io
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.optim.muon import Muon as TimmMuon
from timm.optim.muon import zeropower_via_newtonschulz
from torch import Tensor, nn

from pipeline.models import build_network
from pipeline.optim import parameter_groups
from pipeline.optim.muon import COEFFICIENTS, Muon, polar_factors

_RATE = 0.01
_OPTIONS: dict[str, Any] = {"momentum": 0.95, "nesterov": True}
_UPDATE_ERROR = 1e-3
"""Relative error of an update in single precision, in the Frobenius norm. The iteration leaves singular values up to
0.3 away from 1, so an error of this size changes nothing."""


def _normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _distance(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def _groups(*parameters: Tensor, hidden: bool = True, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    return [{"params": list(parameters), "weight_decay": weight_decay, "hidden": hidden}]


def _stepped(weight: Tensor, gradients: list[Tensor], *, weight_decay: float = 0.0, **options: Any) -> Tensor:
    """A hidden matrix after steps along these gradients."""
    parameter = nn.Parameter(weight.clone())
    optimizer = Muon(_groups(parameter, weight_decay=weight_decay), _RATE, **{**_OPTIONS, **options})
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def _orthogonalized(matrix: Tensor) -> Tensor:
    (factor,) = polar_factors([matrix])
    actual: Tensor = factor @ matrix if len(matrix) <= matrix.shape[1] else matrix @ factor
    return actual


@pytest.mark.parametrize("shape", [(4, 4), (5, 12), (12, 5), (64, 576), (576, 64)])
def test_singular_vectors_stay_and_singular_values_become_one(shape: tuple[int, int]) -> None:
    u, s, vt = torch.linalg.svd(_normal(*shape, dtype=torch.float64), full_matrices=False)
    matrix = u @ torch.diag(torch.linspace(1, 0.05, len(s), dtype=torch.float64)) @ vt
    actual = u.mT @ _orthogonalized(matrix) @ vt.mT
    values = actual.diagonal()
    torch.testing.assert_close(actual, torch.diag(values), rtol=0, atol=1e-10)
    assert float((values - 1).abs().max()) < 0.2


@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5), (64, 576), (128, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gram_form_is_the_plain_iteration(shape: tuple[int, int], dtype: torch.dtype) -> None:
    matrix = _normal(*shape, dtype=dtype)
    expected = zeropower_via_newtonschulz(matrix, len(COEFFICIENTS), list(COEFFICIENTS), dtype=dtype)
    assert _distance(_orthogonalized(matrix), expected) < (_UPDATE_ERROR if dtype == torch.float32 else 1e-11)


@pytest.mark.parametrize("smallest", [1e-2, 1e-4, 1e-7, 0.0])
def test_small_singular_values_do_no_harm_in_single_precision(smallest: float) -> None:
    """The Gram matrix holds their squares, which rounding may make negative."""
    u, s, vt = torch.linalg.svd(_normal(48, 200, dtype=torch.float64), full_matrices=False)
    spectrum = torch.ones_like(s)
    spectrum[1:] = smallest
    matrix = u @ torch.diag(spectrum) @ vt
    expected = zeropower_via_newtonschulz(matrix, len(COEFFICIENTS), list(COEFFICIENTS), dtype=torch.float64)
    assert _distance(_orthogonalized(matrix.float()).double(), expected) < _UPDATE_ERROR


@given(
    shapes=st.lists(st.tuples(st.integers(4, 12), st.integers(1, 12)), min_size=1, max_size=6), seed=st.integers(0, 99)
)
@settings(deadline=None, max_examples=25)
def test_a_batch_of_shapes_is_each_of_them_alone(shapes: list[tuple[int, int]], seed: int) -> None:
    weights = [_normal(*shape, seed=seed + index, dtype=torch.float64) for index, shape in enumerate(shapes)]
    gradients = [_normal(*shape, seed=100 + seed + index, dtype=torch.float64) for index, shape in enumerate(shapes)]
    together = [nn.Parameter(weight.clone()) for weight in weights]
    for parameter, gradient in zip(together, gradients, strict=True):
        parameter.grad = gradient.clone()
    Muon(_groups(*together), _RATE, **_OPTIONS).step()
    for parameter, weight, gradient in zip(together, weights, gradients, strict=True):
        torch.testing.assert_close(parameter.detach(), _stepped(weight, [gradient]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(8, 8), (16, 40), (40, 16), (16, 8, 3, 3)])
def test_weights_go_where_timm_takes_them(
    shape: tuple[int, ...], nesterov: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Momentum, decay and length of the step are timm's, whose iteration is kept from rounding to bfloat16."""
    monkeypatch.setattr(zeropower_via_newtonschulz, "__defaults__", _in_float64())
    weight = _normal(*shape, seed=1, dtype=torch.float64)
    gradients = [_normal(*shape, seed=seed, dtype=torch.float64) for seed in range(2, 5)]
    theirs = nn.Parameter(weight.clone())
    optimizer = TimmMuon([theirs], lr=_RATE, momentum=0.9, nesterov=nesterov, weight_decay=0.1)
    for gradient in gradients:
        theirs.grad = gradient.clone()
        optimizer.step()
    actual = _stepped(weight, gradients, momentum=0.9, nesterov=nesterov, weight_decay=0.1)
    assert _distance(actual - weight, theirs.detach() - weight) < 1e-9


def _in_float64() -> tuple[Any, ...]:
    """The default arguments of timm's iteration, with another `dtype`."""
    return tuple(
        torch.float64 if isinstance(value, torch.dtype) else value
        for value in zeropower_via_newtonschulz.__defaults__ or ()
    )


@pytest.mark.parametrize("used", [slice(0, 72), slice(32, 40), slice(8, 64), slice(0, 0)])
def test_columns_of_zeros_change_nothing(used: slice) -> None:
    """A tap that sees padding alone has no gradient; its weights are decayed as all others."""
    weight, gradient = _normal(16, 8, 3, 3, dtype=torch.float64), torch.zeros(16, 72, dtype=torch.float64)
    gradient[:, used] = _normal(16, 72, seed=1, dtype=torch.float64)[:, used]
    actual = _stepped(weight, [gradient.view_as(weight)], weight_decay=0.1)
    step = zeropower_via_newtonschulz(gradient, 5, list(COEFFICIENTS), dtype=torch.float64)
    expected = weight * (1 - _RATE * 0.1) - _RATE * 0.2 * math.sqrt(72) * step.view_as(weight)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_the_memory_format_of_a_filter_does_not_matter() -> None:
    weight, gradient = _normal(8, 4, 3, 3, dtype=torch.float64), _normal(8, 4, 3, 3, seed=1, dtype=torch.float64)
    expected = _stepped(weight, [gradient])
    for parameter_format in (torch.contiguous_format, torch.channels_last):
        for gradient_format in (torch.contiguous_format, torch.channels_last):
            actual = _stepped(
                weight.contiguous(memory_format=parameter_format),
                [gradient.contiguous(memory_format=gradient_format)],
            )
            torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def test_a_gradient_of_nothing_is_a_step_of_nothing() -> None:
    weight = _normal(4, 6)
    assert torch.equal(_stepped(weight, [torch.zeros(4, 6)]), weight)
    assert _distance(_stepped(weight, [torch.full((4, 6), 1e-30)]), weight) < 1e-6


@pytest.mark.slow
def test_the_outer_layers_and_vectors_take_the_steps_of_adamw() -> None:
    """The first filter and the classifier too, as the authors advise; timm would orthogonalize both."""
    model = build_network("resnet18", 10, stem="imagenet", seed=0).double()
    outer = model.input_layer, model.output_layer
    groups = parameter_groups(model, weight_decay=0.1, decay_norm_and_bias=False, outer_layers=outer)
    named = [parameter for name, parameter in model.named_parameters() if _by_adamw(name)]
    copies = [nn.Parameter(parameter.detach().clone()) for parameter in named]
    adamw = torch.optim.AdamW(
        [
            {"params": [copy for copy in copies if copy.ndim > 1], "weight_decay": 0.1},
            {"params": [copy for copy in copies if copy.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=_RATE, betas=(0.9, 0.95), eps=1e-10,
    )  # fmt: skip
    optimizer = Muon(groups, _RATE, **_OPTIONS)
    for seed in range(2):
        for index, parameter in enumerate(model.parameters()):
            parameter.grad = _normal(*parameter.shape, seed=100 * seed + index, dtype=torch.float64)
        for copy, parameter in zip(copies, named, strict=True):
            assert parameter.grad is not None
            copy.grad = parameter.grad.clone()
        optimizer.step()
        adamw.step()
    for copy, parameter in zip(copies, named, strict=True):
        torch.testing.assert_close(parameter.detach(), copy.detach(), rtol=1e-12, atol=1e-12)


def _by_adamw(name: str) -> bool:
    vector = ".bn" in name or ".downsample.1." in name
    return vector or name.startswith(("backbone.conv1.", "backbone.bn1.", "backbone.fc."))


def test_it_goes_on_to_the_same_bits_from_a_file() -> None:
    """Filters in channels_last, wide and tall matrices, and vectors."""

    def start() -> tuple[list[nn.Parameter], Any]:
        filters = [
            nn.Parameter(_normal(8, 4, 3, 3).contiguous(memory_format=torch.channels_last)),
            nn.Parameter(_normal(8, 4, 1, 1, seed=1).contiguous(memory_format=torch.channels_last)),
            nn.Parameter(_normal(6, 20, seed=2)),
        ]
        vectors = [nn.Parameter(_normal(5, seed=3))]
        groups = _groups(*filters, weight_decay=0.1) + _groups(*vectors, hidden=False)
        return [*filters, *vectors], Muon(groups, _RATE, **_OPTIONS)

    def run(parameters: list[nn.Parameter], optimizer: Any, seeds: range) -> None:
        for seed in seeds:
            for index, parameter in enumerate(parameters):
                gradient = _normal(*parameter.shape, seed=10 * seed + index)
                parameter.grad = gradient.contiguous(
                    memory_format=torch.channels_last if gradient.ndim == 4 else torch.contiguous_format
                )
            optimizer.step()

    straight, stopped, resumed = start(), start(), start()
    run(*straight, range(6))
    run(*stopped, range(3))
    file = io.BytesIO()
    torch.save({"weights": stopped[0], "optimizer": stopped[1].state_dict()}, file)
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    with torch.no_grad():
        for parameter, value in zip(resumed[0], saved["weights"], strict=True):
            parameter.copy_(value)
    resumed[1].load_state_dict(saved["optimizer"])
    run(*resumed, range(3, 6))
    for ours, theirs in zip(resumed[0], straight[0], strict=True):
        assert torch.equal(ours, theirs)


@pytest.fixture
def tf32() -> Iterator[Any]:
    flags: Any = torch.backends.cuda.matmul
    before = flags.fp32_precision
    flags.fp32_precision = "tf32"
    yield flags
    flags.fp32_precision = before


def test_products_are_not_rounded_to_tf32_whatever_the_recipe_says(tf32: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    original = torch.baddbmm

    def noting(*arguments: Any, **options: Any) -> Tensor:
        seen.append(tf32.fp32_precision)
        return original(*arguments, **options)

    monkeypatch.setattr(torch, "baddbmm", noting)
    _stepped(_normal(4, 6), [_normal(4, 6, seed=1)])
    assert seen == ["ieee"] * len(COEFFICIENTS)
    assert tf32.fp32_precision == "tf32"


def test_a_precision_that_follows_the_general_one_still_does(tf32: Any) -> None:
    backends: Any = torch.backends
    general = backends.fp32_precision
    try:
        tf32.fp32_precision, backends.fp32_precision = "none", "tf32"
        _stepped(_normal(4, 6), [_normal(4, 6, seed=1)])
        backends.fp32_precision = "ieee"
        assert tf32.fp32_precision == "ieee"
    finally:
        backends.fp32_precision = general
