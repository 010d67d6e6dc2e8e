"""Features and logits of the five networks, and what a seed decides."""

from typing import Literal

import pytest
import torch
import torchvision
from torch import nn

from pipeline.models import NETWORKS, build, feature_dimension
from pipeline.models.resnet import ResNet

Stem = Literal["imagenet", "cifar"]
_STEMS: tuple[Stem, ...] = ("imagenet", "cifar")


def _parameters(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("network", NETWORKS)
def test_features_and_logits_of_every_network(network: str) -> None:
    model = build(network, 7, stem="imagenet", seed=0).eval()
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        features = model.features(images)
        assert features.shape == (2, feature_dimension(network))
        assert features.dtype == torch.float32
        assert model.classify(features).shape == (2, 7)
        torch.testing.assert_close(model.classify(features), model(images))


def test_dimensions_of_the_paper() -> None:
    assert {network: feature_dimension(network) for network in NETWORKS} == {
        "resnet18": 512, "resnet34": 512, "resnet50": 2048, "resnet101": 2048, "resnet152": 2048,
    }  # fmt: skip


@pytest.mark.parametrize("network", ["resnet18", "resnet50"])
def test_the_imagenet_stem_is_torchvisions_own_network(network: str) -> None:
    model = build(network, 5, stem="imagenet", seed=1).eval()
    theirs = torchvision.models.get_model(network, weights=None, num_classes=5).eval()
    theirs.load_state_dict(model.backbone.state_dict())
    images = torch.rand(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(model(images), theirs(images))


def test_the_cifar_stem_keeps_the_pixels_of_small_images() -> None:
    """Four times as many on each side in every stage as the ImageNet stem."""

    def side_of_last_block(stem: Stem) -> int:
        net = build("resnet18", 5, stem=stem, seed=0).eval().backbone
        with torch.inference_mode():
            x = net.maxpool(net.relu(net.bn1(net.conv1(torch.zeros(1, 3, 32, 32)))))
            return int(net.layer4(net.layer3(net.layer2(net.layer1(x)))).shape[-1])

    assert side_of_last_block("imagenet") == 1
    assert side_of_last_block("cifar") == 4


@pytest.mark.parametrize("stem", _STEMS)
@pytest.mark.parametrize("size", [8, 16, 28])
def test_images_of_other_sizes_pass(stem: Stem, size: int) -> None:
    model = build("resnet18", 3, stem=stem, seed=0).eval()
    with torch.inference_mode():
        assert model.features(torch.zeros(1, 3, size, size)).shape == (1, 512)


@pytest.mark.parametrize("stem", _STEMS)
def test_the_seed_decides_the_weights(stem: Stem) -> None:
    first, again, other = (_parameters(build("resnet18", 4, stem=stem, seed=seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_weights_do_not_depend_on_the_global_generator() -> None:
    first = _parameters(build("resnet18", 4, stem="cifar", seed=3))
    torch.rand(5)
    assert torch.equal(first, _parameters(build("resnet18", 4, stem="cifar", seed=3)))


def test_the_global_generator_is_left_alone() -> None:
    torch.rand(5)  # away from where an earlier call with this seed would have left it
    before = torch.get_rng_state()
    build("resnet18", 4, stem="cifar", seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_cifar_convolution_has_he_et_als_variance() -> None:
    weight = build("resnet18", 4, stem="cifar", seed=0).backbone.conv1.weight
    assert weight.shape == (64, 3, 3, 3)
    assert float(weight.detach().std()) == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.1)


def test_the_state_dict_has_torchvisions_names() -> None:
    model: ResNet = build("resnet34", 4, stem="imagenet", seed=0)
    theirs = torchvision.models.resnet34(weights=None, num_classes=4).state_dict()
    assert {name.removeprefix("backbone.") for name in model.state_dict()} == set(theirs)
