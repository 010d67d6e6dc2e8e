"""The ResNet-9: its size, its residual connections, its scaled logits, and the images that it reads."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.config.extractors import MIN_PIXELS
from pipeline.models import build_network, feature_dimension, load_backbone, set_head
from pipeline.models.layers import GroupedBatchNorm2d
from pipeline.models.resnet9 import ResNet9

_BOTH = pytest.mark.parametrize("network", ["resnet9", "resnet9_wide"])


def _build(network: str = "resnet9", *, seed: int = 0) -> ResNet9:
    model = build_network(network, 10, stem="imagenet", seed=seed)
    assert isinstance(model, ResNet9)
    return model.eval()


def _images(size: int = 32) -> Tensor:
    return torch.rand(3, 3, size, size, generator=torch.Generator().manual_seed(1))


def test_it_has_the_weights_of_its_layers() -> None:
    stem = 24 * (3 * 2 * 2 + 1)
    blocks = sum(9 * c * (i + c) + 4 * c for i, c in [(24, 32), (32, 128), (128, 128)])
    assert sum(weight.numel() for weight in _build().parameters()) == stem + blocks + 10 * (128 + 1)


@_BOTH
def test_its_smallest_image_is_the_smallest_that_passes(network: str) -> None:
    model, smallest = _build(network), MIN_PIXELS[network]
    with torch.inference_mode():
        assert model.features(_images(smallest)).shape == (3, feature_dimension(network))
        with pytest.raises(RuntimeError, match="too small"):
            model.features(_images(smallest - 1))


def test_a_block_adds_to_its_input_at_half_the_resolution() -> None:
    """With a scale of 0 the second convolution of a block adds nothing."""
    model = _build()
    block = model.backbone.blocks[0]
    x = torch.randn(2, 24, 31, 31, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        before = F.gelu(block.bn1(F.max_pool2d(block.conv1(x), 2)))
        added = block.bn2(block.conv2(before))
        assert block(x).shape == (2, 32, 15, 15)
        torch.testing.assert_close(block(x), F.gelu(before + added))
        assert float(added.abs().max()) > 0.1
        block.bn2.weight.zero_()
        torch.testing.assert_close(block(x), F.gelu(before))


def test_every_batch_norm_is_one_of_ghost_batches() -> None:
    layers = [module for module in _build().modules() if "BatchNorm" in type(module).__name__]
    assert len(layers) == 6
    assert all(isinstance(layer, GroupedBatchNorm2d) for layer in layers)


def test_a_head_fitted_elsewhere_gives_its_logits() -> None:
    """The classifier scales its logits; a head that is set must not be scaled."""
    model, generator = _build(), torch.Generator().manual_seed(3)
    weight, bias = torch.randn(10, 128, generator=generator), torch.randn(10, generator=generator)
    set_head(model, weight, bias)
    with torch.inference_mode():
        features = model.features(_images())
        torch.testing.assert_close(model(_images()), F.linear(features, weight, bias))


def test_weights_of_another_training_are_taken_but_for_the_head() -> None:
    model, other = _build(seed=0), _build(seed=1)
    load_backbone(model, other.state_dict(), source="x")
    with torch.inference_mode():
        torch.testing.assert_close(model.features(_images()), other.features(_images()))
        assert not torch.equal(model(_images()), other(_images()))
