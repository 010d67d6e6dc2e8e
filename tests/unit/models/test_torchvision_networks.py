"""Classifiers of torchvision: their layers, and a batch that can be split."""

import pytest
import torch
from torch import Tensor, nn
from torchvision import models

from pipeline.config import torchvision_names
from pipeline.errors import InputError
from pipeline.models import build_network, feature_dimension, set_batch_context
from pipeline.models.layers import KeyedDropout
from pipeline.models.network import Network
from pipeline.models.timm_networks import check_trainable
from pipeline.models.torchvision_networks import TORCHVISION_PREFIX, check_side
from tests.fixtures.slow import quick_first

# One of each kind of layer that depends on the batch: BatchNorm, dropout, stochastic depth.
_TRAINED = pytest.mark.parametrize("network", ["torchvision/mobilenet_v3_small", "torchvision/efficientnet_b0"])
_FAMILIES = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "inception_v3", "maxvit_t",
    "mnasnet0_5", "mobilenet_v2", "regnet_y_400mf", "resnext50_32x4d", "shufflenet_v2_x0_5", "swin_t", "vgg16",
    "vgg11_bn", "vit_b_16", "wide_resnet50_2",
)  # fmt: skip


def _build(network: str, *, seed: int = 0) -> Network:
    return build_network(network, 5, stem="imagenet", seed=seed)


def _images(n: int, size: int = 32) -> Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(0))


def test_params_and_models_have_one_prefix() -> None:
    assert torchvision_names.TORCHVISION_PREFIX == TORCHVISION_PREFIX


@pytest.mark.parametrize("family", quick_first(4, _FAMILIES))
def test_every_family_ends_in_a_linear_layer_and_can_be_trained(family: str) -> None:
    network = f"torchvision/{family}"
    with torch.device("meta"):
        model = _build(network)
    check_trainable(model, network)
    assert isinstance(model.output_layer, nn.Linear)
    assert (model.output_layer.in_features, model.output_layer.out_features) == (feature_dimension(network), 5)
    layers = [module.layer for module in model.modules() if isinstance(module, KeyedDropout)]
    assert len(set(layers)) == len(layers)


def test_vgg16_is_torchvisions_at_32_pixels() -> None:
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in _build("torchvision/vgg16").parameters())
        reference = sum(parameter.numel() for parameter in models.vgg16(num_classes=5).parameters())
    assert parameters == reference
    check_side("torchvision/vgg16", 32)
    assert feature_dimension("torchvision/vgg16") == 4096


@_TRAINED
def test_it_computes_what_torchvision_computes(network: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        reference = models.get_model(network.removeprefix(TORCHVISION_PREFIX), weights=None, num_classes=5).eval()
    images = _images(2).double()
    with torch.inference_mode():
        actual, expected = _build(network).double().eval()(images), reference.double()(images)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)  # sums of 10^4 numbers: 10^4 * 2^-53


@_TRAINED
def test_a_batch_may_be_split_between_its_groups(network: str) -> None:
    model, images, keys = _build(network).train().double(), _images(7).double(), torch.arange(7) * 7919
    with torch.no_grad():
        set_batch_context(model, group_sizes=(3, 4), keys=keys)
        before = torch.get_rng_state()
        together, start = model(images), 0
        assert torch.equal(torch.get_rng_state(), before)
        for size in (3, 4):
            rows = slice(start, start := start + size)
            set_batch_context(model, group_sizes=(size,), keys=keys[rows])
            torch.testing.assert_close(model(images[rows]), together[rows], rtol=1e-9, atol=1e-9)


def test_the_seed_decides_the_weights() -> None:
    first, same, other = (_build("torchvision/mobilenet_v3_small", seed=seed).output_layer.weight for seed in (3, 3, 4))
    assert isinstance(first, Tensor)
    assert isinstance(same, Tensor)
    assert isinstance(other, Tensor)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("network", "says"),
    [
        ("torchvision/vgg61", "did you mean .*torchvision/vgg16"),
        ("torchvision/squeezenet1_0", "does not end in a linear layer"),
    ],
)
def test_what_is_no_classifier_is_one_line(network: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as raised:
        build_network(network, 5, stem="imagenet", seed=0)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("network", "side"), [("torchvision/vgg16", 16), ("torchvision/vit_b_16", 32)])
def test_images_of_a_size_that_it_does_not_take_are_refused(network: str, side: int) -> None:
    with pytest.raises(InputError, match=f"does not take images of {side} pixels") as raised:
        check_side(network, side)
    assert "\n" not in str(raised.value)


def test_the_residuals_of_a_swin_block_are_dropped_independently() -> None:
    """Both pass through one `StochasticDepth`, which samples twice in torchvision."""
    block = [module for module in _build("torchvision/swin_t").modules() if hasattr(module, "stochastic_depth")][-1]
    kept: list[Tensor] = []
    block.get_submodule("stochastic_depth").register_forward_hook(
        lambda _, __, out: kept.append((out != 0).flatten(1).any(1))
    )
    set_batch_context(block.train(), group_sizes=(64,), keys=torch.arange(64) * 7919)
    with torch.no_grad():
        block(torch.rand(64, 1, 1, 768, generator=torch.Generator().manual_seed(0)))
    assert len(kept) == 2
    assert not torch.equal(*kept)
