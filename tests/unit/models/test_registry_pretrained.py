"""Weights of others: taken where they fit by name and shape, refused by name where they do not."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor

from pipeline.errors import InputError
from pipeline.models import load_backbone
from pipeline.models.resnet import ResNet
from tests.fixtures.slow import quick_first
from tests.fixtures.training import build_resnet

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def theirs() -> State:
    """A ResNet-18 for 1000 classes, with torchvision's names."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        state: State = torchvision.models.resnet18(weights=None).state_dict()
    return state


def _ours() -> ResNet:
    return build_resnet()


def _check_taken(model: ResNet, state: State) -> None:
    own, fresh = model.backbone.state_dict(), _ours().backbone.state_dict()
    for name, tensor in own.items():
        assert torch.equal(tensor, (fresh if name.startswith("fc.") else state)[name]), name


def test_everything_but_the_head_is_taken(theirs: State) -> None:
    model = _ours()
    load_backbone(model, theirs, source="x")
    _check_taken(model, theirs)


def test_own_names_are_known_too(theirs: State) -> None:
    model = _ours()
    load_backbone(model, {f"backbone.{name}": tensor for name, tensor in theirs.items()}, source="x")
    _check_taken(model, theirs)


def test_the_head_may_be_missing(theirs: State) -> None:
    model = _ours()
    load_backbone(model, {name: t for name, t in theirs.items() if not name.startswith("fc.")}, source="x")
    _check_taken(model, theirs)


def test_files_from_before_torch_0_4_have_no_batch_counters(theirs: State) -> None:
    """torchvision's own ImageNet weights are among them."""
    model = _ours()
    load_backbone(model, {name: t for name, t in theirs.items() if "num_batches" not in name}, source="x")
    _check_taken(model, theirs)


_Change = Callable[[State], Any]


@pytest.mark.parametrize(
    ("change", "tensor"),
    quick_first(
        3,
        [
            (lambda state: state.pop("layer2.0.conv1.weight"), "layer2.0.conv1.weight"),
            (lambda state: state.pop("bn1.running_mean"), "bn1.running_mean"),
            (lambda state: state.clear(), "bn1.bias"),
            (lambda state: state.update(extra=torch.zeros(1)), "extra"),
            (lambda state: state.update({"conv1.weight": torch.zeros(64, 3, 3, 3)}), "conv1.weight"),
            (lambda state: state.update({"bn1.bias": torch.full((64,), torch.nan)}), "bn1.bias"),
            (lambda state: state.update({"bn1.bias": torch.ones(64).to_sparse()}), "bn1.bias"),
            (lambda state: state.update({"bn1.bias": torch.zeros(())}), "bn1.bias"),
        ],
    ),
)
def test_what_does_not_fit_is_named(theirs: State, change: _Change, tensor: str) -> None:
    state, model = dict(theirs), _ours()
    change(state)
    with pytest.raises(InputError) as caught:
        load_backbone(model, state, source="some.pth")
    assert caught.value.key == "some.pth"
    assert tensor in re.split(r"[ ;]", str(caught.value))
    _check_taken(model, _ours().backbone.state_dict())


@pytest.mark.parametrize("network", ["resnet34", "resnet50"])
def test_another_network_is_refused(theirs: State, network: str) -> None:
    pairs = [(build_resnet(network), theirs), (_ours(), build_resnet(network).state_dict())]
    for model, state in pairs:
        with pytest.raises(InputError) as caught:
            load_backbone(model, state, source="some.pth")
        assert caught.value.key == "some.pth"
