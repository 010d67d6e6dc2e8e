"""Networks that read no small images or have no ImageNet weights are refused with one line."""

from typing import Any

import pytest

from pipeline.config.params import check_params
from pipeline.errors import InputError
from tests.fixtures.params import digits_tree
from tests.fixtures.printed_errors import key_within


def _tree(image_size: int = 9) -> dict[str, Any]:
    tree = digits_tree()
    tree["prepare"]["image_size"] = image_size
    tree["networks"] = ["resnet9-r2"]
    study = tree["studies"]["digits"]
    study |= {"models": ["resnet9_wide"], "filter_network": "resnet9-r2", "needs": "filter/resnet9-r2"}
    return tree


def test_a_resnet9_is_an_extractor_and_a_model() -> None:
    params = check_params(_tree(), source="p")
    assert params.networks == ("resnet9-r2",)
    assert params.studies["digits"].models == ("resnet9_wide",)


@pytest.mark.parametrize(
    ("section", "key"),
    [("prepare", "networks"), ("finetune", "networks"), ("train", "studies.digits.models")],
)
def test_images_that_are_too_small_are_refused(section: str, key: str) -> None:
    tree = _tree(8 if section == "prepare" else 16)
    if section != "prepare":
        tree[section].setdefault("augmentation", {})["crop_size"] = 8
    with pytest.raises(InputError) as raised:
        check_params(tree, source="p")
    assert key_within(raised.value, "p") == key
    tree["networks"] = ["resnet18"]
    tree["studies"]["digits"] |= {"models": ["resnet18"], "filter_network": "resnet18", "needs": "filter/resnet18"}
    check_params(tree, source="p")


@pytest.mark.parametrize("weights", ["imagenet", "pretrained"])
def test_weights_that_do_not_exist_are_refused(weights: str) -> None:
    tree = _tree()
    tree["finetune"] |= {"weights": weights, "stem": "imagenet"}
    with pytest.raises(InputError) as raised:
        check_params(tree, source="p")
    assert key_within(raised.value, "p") == "finetune.weights"
    tree["finetune"]["weights"] = "own.pt"
    check_params(tree, source="p")
