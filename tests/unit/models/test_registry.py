"""What every network of the registry offers: features, logits, weights of a seed, and a batch that can be split."""

from functools import partial
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from pipeline.config.extractors import MIN_PIXELS
from pipeline.config.recipe import ModelName
from pipeline.errors import InputError
from pipeline.models import NETWORKS, build_network, feature_dimension, set_batch_context
from pipeline.models.layers import KeyedDropout
from pipeline.models.network import Network
from tests.fixtures.slow import quick_first

_SMALL_NETWORKS = ["resnet18", "resnet50", "resnet9", "small_cnn"]
# The deeper ones are more of the same.
_SMALL = pytest.mark.parametrize("network", _SMALL_NETWORKS)
_EVERY = pytest.mark.parametrize("network", quick_first(4, dict.fromkeys([*_SMALL_NETWORKS, *NETWORKS])))


def _build(network: str, *, seed: int = 0) -> Network:
    return build_network(network, 5, stem="imagenet", seed=seed)


def _images(n: int, size: int = 16) -> Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(0))


def _parameters(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_the_parameter_file_names_every_network() -> None:
    assert set(get_args(ModelName)) == set(NETWORKS)


@_EVERY
def test_features_and_logits(network: str) -> None:
    model = _build(network).eval()
    with torch.inference_mode():
        features = model.features(_images(2))
        assert features.shape == (2, feature_dimension(network))
        assert features.dtype == torch.float32
        assert model.classify(features).shape == (2, 5)
        torch.testing.assert_close(model.classify(features), model(_images(2)))


@_SMALL
@pytest.mark.parametrize("size", quick_first(2, [15, 64, 8, 28]))
def test_images_of_other_sizes_pass(network: str, size: int) -> None:
    size = max(size, MIN_PIXELS.get(network, 0))
    with torch.inference_mode():
        assert _build(network).eval().features(_images(1, size)).shape == (1, feature_dimension(network))


@_SMALL
def test_the_seed_decides_the_weights_not_the_global_generator(network: str) -> None:
    first = _parameters(_build(network, seed=3))
    torch.rand(5)  # away from where an earlier call with this seed would have left it
    before = torch.get_rng_state()
    assert torch.equal(_parameters(_build(network, seed=3)), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(_parameters(_build(network, seed=4)), first)


@_SMALL
def test_a_batch_may_be_split_between_its_groups(network: str) -> None:
    """What a training pass gives each image does not depend on what passes with it."""
    model, images, keys = _build(network).train().double(), _images(9, 32).double(), torch.arange(9) * 7919
    with torch.no_grad():
        set_batch_context(model, group_sizes=(3, 2, 4), keys=keys)
        together, start = model(images), 0
        for size in (3, 2, 4):
            rows = slice(start, start := start + size)
            set_batch_context(model, group_sizes=(size,), keys=keys[rows])
            torch.testing.assert_close(model(images[rows]), together[rows], rtol=1e-9, atol=1e-9)


@_SMALL
def test_nothing_in_a_network_draws_from_the_global_generator(network: str) -> None:
    """Dropout and the like must be keyed by sample: torch's own would differ between splits of a batch."""
    model = _build(network).train()
    set_batch_context(model, group_sizes=(4,), keys=torch.arange(4))
    before = torch.get_rng_state()
    model(_images(4))
    assert torch.equal(torch.get_rng_state(), before)


@_EVERY
def test_dropout_layers_have_masks_of_their_own(network: str) -> None:
    layers = [module.layer for module in _build(network).modules() if isinstance(module, KeyedDropout)]
    assert len(set(layers)) == len(layers)


@_SMALL
def test_training_passes_change_no_buffer(network: str) -> None:
    """Running statistics are set once, from the final weights."""
    model = _build(network).train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    set_batch_context(model, group_sizes=(2, 2), keys=torch.arange(4))
    model(_images(4))
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_dimensions() -> None:
    assert {network: feature_dimension(network) for network in NETWORKS} == {
        "resnet18": 512, "resnet34": 512, "resnet50": 2048, "resnet101": 2048, "resnet152": 2048, "small_cnn": 128,
        "resnet9": 128, "resnet9_wide": 256,
    }  # fmt: skip


def test_an_unknown_name_is_refused() -> None:
    for refused in (partial(build_network, "resnet-18", 3, stem="cifar", seed=0), partial(feature_dimension, "vgg")):
        with pytest.raises(InputError) as raised:
            refused()
        assert raised.value.key == "networks"
        assert "small_cnn" in str(raised.value)
