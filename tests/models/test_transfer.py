"""Weights of others: taken where they fit by name and shape, refused by name where they do not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from made_up_training import build_resnet
from torch import Tensor

from pipeline.errors import InputError
from pipeline.models import load_backbone
from pipeline.models.resnet import ResNet

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
    ("change", "said"),
    [
        (lambda state: state.pop("layer2.0.conv1.weight"), "has no tensor layer2.0.conv1.weight"),
        (lambda state: state.pop("bn1.running_mean"), "has no tensor bn1.running_mean"),
        (lambda state: state.clear(), "has no tensor bn1.bias"),
        (lambda state: state.update(extra=torch.zeros(1)), "tensor extra does not belong"),
        (
            lambda state: state.update({"conv1.weight": torch.zeros(64, 3, 3, 3)}),
            "tensor conv1.weight is (64, 3, 3, 3), this network's is (64, 3, 7, 7)",
        ),
        (
            lambda state: state.update({"bn1.bias": torch.full((64,), torch.nan)}),
            "tensor bn1.bias is sparse or holds NaN",
        ),
        (lambda state: state.update({"bn1.bias": torch.ones(64).to_sparse()}), "tensor bn1.bias is sparse"),
        (lambda state: state.update({"bn1.bias": torch.zeros(())}), "tensor bn1.bias is (), this network's is (64,)"),
    ],
)
def test_what_does_not_fit_is_named(theirs: State, change: _Change, said: str) -> None:
    state, model = dict(theirs), _ours()
    change(state)
    with pytest.raises(InputError) as caught:
        load_backbone(model, state, source="some.pth")
    assert str(caught.value).startswith("some.pth: ")
    assert said in str(caught.value)
    _check_taken(model, _ours().backbone.state_dict())


@pytest.mark.parametrize("network", ["resnet34", "resnet50"])
def test_another_network_is_refused(theirs: State, network: str) -> None:
    with pytest.raises(InputError, match=r"some\.pth: "):
        load_backbone(build_resnet(network), theirs, source="some.pth")
    with pytest.raises(InputError, match=r"some\.pth: "):
        load_backbone(_ours(), build_resnet(network).state_dict(), source="some.pth")
