"""Convolutions on small maps equal torch's: values, gradients of every order, strides; and ResNets use them."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pipeline.models import small_maps
from pipeline.models.resnet import RESNETS
from pipeline.models.small_maps import SmallMapConv2d, with_small_maps
from tests.fixtures.slow import quick_first
from tests.fixtures.training import build_resnet

CASES = [(1, 1, 1), (1, 1, 2), (1, 3, 1), (1, 3, 2), (2, 1, 2), (2, 3, 1), (2, 3, 2)]
"""Side of the map, kernel, stride: all that a ResNet has and that wastes products."""

_SMALLEST_WORK = small_maps._SMALLEST_WORK

_BATCH = 8
"""From so many images on, each of `CASES` is computed by products where channels set no limit."""


@pytest.fixture(scope="module", autouse=True)
def few_channels() -> Iterator[None]:
    """Compute layers of few channels by products too: the tests are quick with few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_maps, "_SMALLEST_WORK", {})
        yield


CASE = pytest.mark.parametrize(("side", "kernel", "stride"), CASES)
FORMATS = (torch.contiguous_format, torch.channels_last)


def _layer(kernel: int, stride: int, *, channels: tuple[int, int] = (5, 7), **options: Any) -> SmallMapConv2d:
    torch.manual_seed(0)
    return SmallMapConv2d(*channels, kernel, stride=stride, **options)


def _maps(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _value_and_gradients(layer: nn.Conv2d, x: Tensor, *, plain: bool) -> tuple[Tensor, Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = F.conv2d(x, layer.weight, None, layer.stride, layer.padding) if plain else layer(x)
    upstream = _maps(*y.shape, seed=2, dtype=y.dtype)
    grad_x, grad_weight = torch.autograd.grad(y, (x, layer.weight), upstream)
    return y.detach(), grad_x, grad_weight


@settings(deadline=None, max_examples=60)
@given(
    case=st.sampled_from(CASES),
    batch=st.sampled_from([1, 2, 7, 8, 9]),
    channels=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    formats=st.tuples(st.sampled_from(FORMATS), st.sampled_from(FORMATS)),
)
def test_equal_to_the_plain_convolution(
    case: tuple[int, int, int], batch: int, channels: tuple[int, int], formats: tuple[Any, Any]
) -> None:
    side, kernel, stride = case
    layer = _layer(kernel, stride, channels=channels).double().to(memory_format=formats[0])
    x = _maps(batch, channels[0], side, side).contiguous(memory_format=formats[1])
    actual, expected = (_value_and_gradients(layer, x, plain=plain) for plain in (False, True))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-12)


def _takes_products(layer: SmallMapConv2d, batch: int, side: int) -> bool:
    node = layer(_maps(batch, layer.in_channels, side, side, dtype=torch.float32)).grad_fn
    assert node is not None
    return "small_map_convolution" in type(node).__name__  # torch 2.10 has no `name()` of it


@CASE
def test_products_are_taken_from_a_number_of_images_on(
    monkeypatch: pytest.MonkeyPatch, side: int, kernel: int, stride: int
) -> None:
    """Few channels need more images. 256 x 512 are the fewest that a ResNet has there above 16 pixels."""
    monkeypatch.setattr(small_maps, "_SMALLEST_WORK", _SMALLEST_WORK)
    case = side, kernel, stride
    smallest = 8 if case in ((1, 1, 1), (1, 1, 2), (2, 3, 1)) else 2
    wide, narrow = _layer(kernel, stride, channels=(256, 512)), _layer(kernel, stride, channels=(64, 128))
    limit = _SMALLEST_WORK.get(case, 0) // (64 * 128)
    for batch in (smallest - 1, smallest, _BATCH):
        assert _takes_products(wide, batch, side) == (batch >= smallest), batch
    for batch in {smallest, limit - 1, limit, 2 * limit} - {-1, 0}:
        assert _takes_products(narrow, batch, side) == (batch >= max(smallest, limit)), batch


@CASE
def test_differentiable_twice(side: int, kernel: int, stride: int) -> None:
    layer = _layer(kernel, stride, channels=(2, 3)).double().to(memory_format=torch.channels_last)
    x = _maps(_BATCH, 2, side, side).requires_grad_()

    def convolve(x: Tensor, weight: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(layer, {"weight": weight}, x)
        return y

    assert torch.autograd.gradcheck(convolve, (x, layer.weight))
    assert torch.autograd.gradgradcheck(convolve, (x, layer.weight))


@CASE
@pytest.mark.parametrize("memory_format", FORMATS)
def test_the_gradient_has_the_strides_of_the_weight(side: int, kernel: int, stride: int, memory_format: Any) -> None:
    """Autograd then keeps the gradient without a copy."""
    layer = _layer(kernel, stride).to(memory_format=memory_format)
    layer(_maps(_BATCH, 5, side, side, dtype=torch.float32)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.stride() == layer.weight.stride()


@pytest.mark.parametrize(("side", "kernel", "stride"), quick_first(2, reversed(CASES)))
# The checks read the gradients of tensors that are not leaves, and torch warns about it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_the_functions_are_sound_operators(side: int, kernel: int, stride: int) -> None:
    """They pass torch's checks: schema, autograd, shapes and strides under the compiler."""
    layer = _layer(kernel, stride).to(memory_format=torch.channels_last)
    x = _maps(_BATCH, 5, side, side, dtype=torch.float32).contiguous(memory_format=torch.channels_last).requires_grad_()
    grad_y = _maps(*layer(x).shape, dtype=torch.float32).requires_grad_()
    operators = torch.ops.batchsieve
    calls = [
        (operators.small_map_convolution, (x, layer.weight, stride)),
        (operators.small_map_gradient_of_x, (grad_y, layer.weight, stride, side)),
        (operators.small_map_gradient_of_weight, (x, grad_y, layer.weight, stride)),
    ]
    for operator, operands in calls:
        results = torch.library.opcheck(operator.default, operands, raise_exception=False)
        assert set(results.values()) == {"SUCCESS"}, results


@CASE
def test_compiles_without_a_graph_break(side: int, kernel: int, stride: int) -> None:
    torch.compiler.reset()
    layer = _layer(kernel, stride).to(memory_format=torch.channels_last)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=False)
    x = _maps(_BATCH, 5, side, side, dtype=torch.float32).contiguous(memory_format=torch.channels_last)
    actual = torch.autograd.grad(compiled(x).sum(), layer.weight)
    assert torch.equal(actual[0], torch.autograd.grad(layer(x).sum(), layer.weight)[0])


@pytest.mark.slow
@pytest.mark.parametrize("network", ["resnet18", "resnet50"])
def test_a_whole_network_compiles_without_a_graph_break(network: str) -> None:
    """At 32 pixels the maps of the last stages have 2x2 and 1x1 pixels."""
    torch.compiler.reset()
    model = build_resnet(network).to(memory_format=torch.channels_last)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
    x = _maps(_BATCH, 3, 32, 32, dtype=torch.float32).contiguous(memory_format=torch.channels_last)
    compiled(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@CASE
def test_autocast_takes_half_precision(side: int, kernel: int, stride: int) -> None:
    """Operands, partial products of a 2x2 map and their sum are rounded to 8 bits: four relative errors of 2**-9."""
    layer = _layer(kernel, stride).to(memory_format=torch.channels_last)
    x = _maps(_BATCH, 5, side, side, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = _value_and_gradients(layer, x, plain=False)
    assert [tensor.dtype for tensor in actual] == [torch.bfloat16, torch.float32, torch.float32]
    exact = F.conv2d(x.abs().double(), layer.weight.abs().double(), None, stride, kernel // 2)
    plain = F.conv2d(x.double(), layer.weight.double(), None, stride, kernel // 2)
    assert bool(((actual[0].double() - plain).abs() <= 4.1 * 2**-9 * exact).all())


@pytest.mark.parametrize("shape", [(1, 5, 1, 1), (1, 5, 2, 2), (3, 5, 1, 2), (3, 5, 3, 3), (3, 5, 4, 4)])
@pytest.mark.parametrize("stride", [1, 2])
def test_other_maps_are_left_to_torch(shape: tuple[int, ...], stride: int) -> None:
    layer = _layer(3, stride)
    x = _maps(*shape, dtype=torch.float32)
    assert torch.equal(layer(x), F.conv2d(x, layer.weight, None, layer.stride, layer.padding))


def test_only_convolutions_of_that_kind_are_replaced() -> None:
    """Weights stay the same tensors; what the products do not describe stays torch's."""
    kept = [
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, bias=False),
        nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False),
        nn.Conv2d(4, 4, 3, padding=2, dilation=2, bias=False),
        nn.Conv2d(4, 4, 3, padding=1, stride=(1, 2), bias=False),
        nn.Conv2d(4, 4, 3, padding=1, stride=3, bias=False),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", bias=False),
        nn.Conv2d(4, 4, 7, padding=3, bias=False),
    ]
    conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
    model = nn.Sequential(nn.Sequential(conv), *kept)
    with_small_maps(model)
    assert [type(module) for module in model[1:]] == [nn.Conv2d] * len(kept)
    inner = model[0]
    assert isinstance(inner, nn.Sequential)
    assert type(inner[0]) is SmallMapConv2d
    assert inner[0].weight is conv.weight


@pytest.mark.parametrize("network", quick_first(2, RESNETS))
def test_all_but_the_first_convolution_of_a_resnet_is_replaced(network: str) -> None:
    with torch.device("meta"):
        model = build_resnet(network)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert [type(conv) for conv in convolutions[1:]] == [SmallMapConv2d] * (len(convolutions) - 1)


@pytest.mark.parametrize(("network", "stem", "size"), quick_first(3, [
    ("resnet18", "imagenet", 8),
    ("resnet18", "imagenet", 32),
    ("resnet18", "cifar", 8),
    *itertools.product(["resnet18"], ["imagenet"], [16, 28, 48, 64]),
    *itertools.product(["resnet50"], ["imagenet"], [16, 32]),
    *itertools.product(["resnet18", "resnet50"], ["cifar"], [16]),
    *itertools.product(["resnet34"], ["imagenet"], [16]),
    *itertools.product(["resnet34", "resnet101", "resnet152"], ["imagenet"], [32]),
]))  # fmt: skip
def test_a_resnet_is_the_plain_one(monkeypatch: pytest.MonkeyPatch, network: str, stem: Any, size: int) -> None:
    """Logits, and the gradient of every weight. BatchNorm of few images would amplify the rounding of 1e-16."""
    monkeypatch.setattr(small_maps, "_SMALLEST_WORK", _SMALLEST_WORK)
    ours = build_resnet(network, 5, stem=stem, seed=1).double()
    plain = torchvision.models.get_model(network, weights=None, num_classes=5).double()
    if stem == "cifar":
        plain.conv1, plain.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False).double(), nn.Identity()
    plain.load_state_dict(ours.backbone.state_dict())
    ours, plain = (model.to(memory_format=torch.channels_last).eval() for model in (ours, plain))
    images, labels = _maps(_BATCH, 3, size, size), torch.arange(_BATCH) % 5
    logits, expected = ours(images), plain(images)
    torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)
    actual, expected_gradients = (
        torch.autograd.grad(F.cross_entropy(value, labels), list(model.parameters()))
        for value, model in ((logits, ours), (expected, plain))
    )
    for one, other in zip(actual, expected_gradients, strict=True):
        assert (one - other).norm() <= 1e-12 * other.norm() + 1e-12
