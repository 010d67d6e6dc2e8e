"""The ResNets: torchvision's network, and the stem for small images."""

from typing import Literal

import pytest
import torch
import torchvision

from pipeline.models.layers import GroupedBatchNorm2d
from pipeline.models.resnet import RESNETS
from tests.fixtures.slow import quick_first
from tests.fixtures.training import build_resnet

Stem = Literal["imagenet", "cifar"]
_STEMS: tuple[Stem, ...] = ("imagenet", "cifar")


@pytest.mark.parametrize("network", ["resnet18", "resnet50"])
def test_the_imagenet_stem_is_torchvisions_own_network(network: str) -> None:
    """On maps of 3x3 and more, where nothing is computed in another form; `test_small_maps` has the others."""
    model = build_resnet(network, 5, seed=1).eval()
    theirs = torchvision.models.get_model(network, weights=None, num_classes=5).eval()
    theirs.load_state_dict(model.backbone.state_dict())
    images = torch.rand(2, 3, 80, 80, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(model(images), theirs(images))


def test_the_cifar_stem_keeps_the_pixels_of_small_images() -> None:
    """Four times as many on each side in every stage as the ImageNet stem."""

    def side_of_last_block(stem: Stem) -> int:
        net = build_resnet(stem=stem).eval().backbone
        with torch.inference_mode():
            x = net.maxpool(net.relu(net.bn1(net.conv1(torch.zeros(1, 3, 32, 32)))))
            return int(net.layer4(net.layer3(net.layer2(net.layer1(x)))).shape[-1])

    assert side_of_last_block("imagenet") == 1
    assert side_of_last_block("cifar") == 4


@pytest.mark.parametrize("stem", _STEMS)
@pytest.mark.parametrize("size", [8, 16, 28])
def test_images_of_other_sizes_pass(stem: Stem, size: int) -> None:
    model = build_resnet(stem=stem).eval()
    with torch.inference_mode():
        assert model.features(torch.zeros(1, 3, size, size)).shape == (1, 512)


@pytest.mark.parametrize("stem", _STEMS)
def test_the_seed_decides_the_weights_of_both_stems(stem: Stem) -> None:
    first, again, other = (build_resnet(stem=stem, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    for name in ("backbone.conv1.weight", "backbone.layer4.0.conv1.weight", "backbone.fc.weight"):
        assert not torch.equal(first[name], other[name])


def test_the_cifar_convolution_has_he_et_als_variance() -> None:
    weight = build_resnet(stem="cifar").backbone.conv1.weight
    assert weight.shape == (64, 3, 3, 3)
    assert float(weight.detach().std()) == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.1)


@pytest.mark.parametrize("network", quick_first(2, RESNETS))
def test_the_state_dict_has_torchvisions_names(network: str) -> None:
    with torch.device("meta"):
        theirs = torchvision.models.get_model(network, weights=None, num_classes=4).state_dict()
    assert {name.removeprefix("backbone.") for name in build_resnet(network).state_dict()} == set(theirs)


def test_every_norm_keeps_groups_apart() -> None:
    norms = [m for m in build_resnet("resnet50").modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    assert len(norms) == 53
    assert all(isinstance(norm, GroupedBatchNorm2d) for norm in norms)
