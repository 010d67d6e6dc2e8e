"""params.yaml is checked with a list of torchvision's classifiers, which has those that are there."""

import pytest
from torchvision import models

from pipeline.config.params import check_params
from pipeline.config.torchvision_names import CLASSIFIERS, TORCHVISION_PREFIX, torchvision_sides
from pipeline.errors import InputError
from pipeline.models.torchvision_networks import check_side
from tests.fixtures.params import digits_with
from tests.fixtures.printed_errors import key_within

# The smallest of each family.
_FAMILIES = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "inception_v3", "maxvit_t",
    "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf", "resnet18", "resnext50_32x4d",
    "shufflenet_v2_x0_5", "swin_t", "swin_v2_t", "vgg11", "vit_b_32", "wide_resnet50_2",
)  # fmt: skip


def test_the_list_has_torchvisions_classifiers() -> None:
    there = {name for name in models.list_models(module=models) if not name.startswith("squeezenet")}
    assert there == CLASSIFIERS


@pytest.mark.slow
@pytest.mark.parametrize("family", _FAMILIES)
def test_sides_are_those_that_the_network_takes(family: str) -> None:
    network = f"{TORCHVISION_PREFIX}{family}"
    smallest, largest = torchvision_sides(network)
    check_side(network, smallest)
    if smallest > 1:
        with pytest.raises(InputError):
            check_side(network, smallest - 1)
    if largest is None:
        check_side(network, 2 * smallest + 1)
    else:
        for side in (largest + 1, 2 * largest):
            with pytest.raises(InputError):
                check_side(network, side)


@pytest.mark.parametrize(
    ("name", "size", "crop", "says"),
    [
        ("vgg16", 32, None, ""),
        ("vgg16", 31, None, "32 pixels or more, and prepare.image_size is 31; raise it"),
        ("vgg16", 64, 16, "32 pixels or more, and train's crop_size is 16; raise it"),
        ("mobilenet_v3_small", 8, None, ""),
        ("vit_b_16", 224, None, ""),
        ("vit_b_16", 64, None, "images of 224 pixels, and prepare.image_size is 64; raise it"),
        ("vit_b_16", 256, None, "images of 224 pixels, and prepare.image_size is 256; lower it"),
        ("vit_b_16", 256, 224, ""),
        ("maxvit_t", 256, None, "221 to 224 pixels, and prepare.image_size is 256; lower it"),
        ("vgg61", 32, None, "did you mean .*torchvision/vgg16"),
        ("squeezenet1_0", 64, None, "ends in a linear layer; use another model"),
    ],
)
def test_a_study_names_a_network_that_takes_its_images(name: str, size: int, crop: int | None, says: str) -> None:
    tree = digits_with("studies.digits.models", [f"{TORCHVISION_PREFIX}{name}"])
    tree["prepare"]["image_size"] = size
    tree["train"].setdefault("augmentation", {})["crop_size"] = crop
    if not says:
        assert check_params(tree, source="p").studies["digits"].models == (f"{TORCHVISION_PREFIX}{name}",)
        return
    with pytest.raises(InputError, match=says) as raised:
        check_params(tree, source="p")
    assert key_within(raised.value, "p") == "studies.digits.models"
    assert "\n" not in str(raised.value)
