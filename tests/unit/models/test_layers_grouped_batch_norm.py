"""BatchNorm of groups in one pass is torch's BatchNorm of each group alone."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pipeline.models.layers import GroupedBatchNorm2d

_CHANNELS = 3
_GROUPS = st.lists(st.integers(2, 6), min_size=1, max_size=5)


def _inputs(n: int, *, channels: int = _CHANNELS, side: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    images = torch.randn(n, channels, side, side, generator=generator, dtype=torch.float64)
    # Every image has another scale and mean: groups differ in their statistics.
    ramp = torch.arange(1, n + 1, dtype=torch.float64)[:, None, None, None]
    return images * ramp + ramp


def _pair() -> tuple[GroupedBatchNorm2d, nn.BatchNorm2d]:
    """Ours and torch's with equal weights, which are not the fresh ones."""
    ours, theirs = GroupedBatchNorm2d(_CHANNELS).double(), nn.BatchNorm2d(_CHANNELS).double()
    with torch.no_grad():
        ours.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
        ours.bias.copy_(torch.tensor([1.0, 0.0, -1.0]))
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def _outcome(layer: Any, inputs: Tensor, groups: list[list[int]]) -> list[Tensor]:
    """Outputs, and the gradients of input, weight and bias, of one pass for each of `groups`."""
    leaf = inputs.clone().requires_grad_()
    rows = leaf.split([sum(sizes) for sizes in groups])
    outputs = []
    for part, sizes in zip(rows, groups, strict=True):
        layer.group_sizes = sizes
        outputs.append(layer(part))
    output = torch.cat(outputs)
    # Not a plain sum, whose gradient BatchNorm takes away.
    (output * torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view_as(output)).sum().backward()
    assert leaf.grad is not None
    return [output.detach(), leaf.grad, layer.weight.grad, layer.bias.grad]


@settings(max_examples=40)
@given(sizes=_GROUPS)
def test_outputs_and_gradients_are_those_of_separate_passes(sizes: list[int]) -> None:
    ours, theirs = _pair()
    inputs = _inputs(sum(sizes))
    together = _outcome(ours, inputs, [sizes])
    alone = _outcome(theirs, inputs, [[size] for size in sizes])
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_without_groups_the_batch_is_one() -> None:
    ours, theirs = _pair()
    torch.testing.assert_close(ours(_inputs(6)), theirs(_inputs(6)), rtol=1e-11, atol=1e-11)


def test_merged_groups_would_be_seen() -> None:
    ours, _ = _pair()
    apart, merged = _outcome(ours, _inputs(8), [[4, 4]]), _outcome(ours, _inputs(8), [[8]])
    assert float((apart[0] - merged[0]).abs().max()) > 0.1
    assert float((apart[1] - merged[1]).abs().max()) > 0.01


@settings(max_examples=40)
@given(n_groups=st.integers(2, 5), size=st.integers(2, 5), side=st.integers(1, 3))
def test_one_operation_is_the_groups_one_by_one(n_groups: int, size: int, side: int) -> None:
    """The form of devices other than the CPU, run on the CPU: outputs, gradients and collected statistics."""
    inputs = _inputs(n_groups * size, side=side).contiguous(memory_format=torch.channels_last)
    outcomes = []
    for is_one in (False, True):
        layer, _ = _pair()
        layer.collected = []
        with patch.object(GroupedBatchNorm2d, "_is_one_operation", return_value=is_one):
            outcomes.append([*_outcome(layer, inputs, [[size] * n_groups]), torch.stack(layer.collected)])
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("device", "sizes", "expected"), [
    ("meta", [3, 3], True), ("meta", [3, 4], False), ("cpu", [3, 3], False),
])  # fmt: skip
def test_on_a_cpu_and_with_unequal_sizes_groups_run_one_by_one(device: str, sizes: list[int], expected: bool) -> None:
    layer = GroupedBatchNorm2d(_CHANNELS).to(device)
    layer.group_sizes = sizes
    with patch.object(layer, "_normalize", side_effect=layer._normalize) as normalize:
        output = layer(torch.zeros(sum(sizes), _CHANNELS, 2, 2, device=device))
    assert output.shape == (sum(sizes), _CHANNELS, 2, 2)
    assert (normalize.call_count == 1) == expected


@settings(max_examples=40)
@given(sizes=_GROUPS)
def test_collected_statistics_are_each_groups_own(sizes: list[int]) -> None:
    """Mean and unbiased variance, as torch's running statistics with a momentum of 1 would be."""
    layer = GroupedBatchNorm2d(_CHANNELS)
    inputs = _inputs(sum(sizes)).float()
    layer.group_sizes, layer.collected = sizes, []
    layer(inputs)
    assert len(layer.collected) == len(sizes)
    for actual, group in zip(layer.collected, inputs.split(sizes), strict=True):
        assert actual.shape == (2, _CHANNELS)
        torch.testing.assert_close(actual[0], group.mean((0, 2, 3)))
        torch.testing.assert_close(actual[1], group.transpose(0, 1).flatten(1).var(1))


def test_collecting_changes_no_output() -> None:
    ours, _ = _pair()
    layer = ours.float()
    layer.group_sizes = [3, 5]
    inputs = _inputs(8).float()
    plain = layer(inputs)
    layer.collected = []
    assert torch.equal(layer(inputs), plain)


def test_training_leaves_the_running_statistics_alone() -> None:
    layer = GroupedBatchNorm2d(_CHANNELS)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    layer.group_sizes, layer.collected = [3, 5], []
    layer(_inputs(8).float())
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


def test_evaluation_uses_running_statistics_and_no_groups() -> None:
    ours, theirs = _pair()
    for layer in (ours, theirs):
        layer.eval()
        assert layer.running_mean is not None
        layer.running_mean.fill_(0.5)
    ours.group_sizes = [1, 2]  # of a batch before
    assert torch.equal(ours(_inputs(7)), theirs(_inputs(7)))


def test_names_are_torchs() -> None:
    assert GroupedBatchNorm2d(3).state_dict().keys() == nn.BatchNorm2d(3).state_dict().keys()


@pytest.mark.parametrize("sizes", [[1], [3, 1]])
def test_a_single_value_has_no_statistics(sizes: list[int]) -> None:
    layer = GroupedBatchNorm2d(_CHANNELS).double()
    layer.group_sizes = sizes
    with pytest.raises(ValueError, match=" 1 value per channel"):
        layer(_inputs(sum(sizes), side=1))
