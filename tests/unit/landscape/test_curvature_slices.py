"""Slices of known losses, and invariances."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pipeline.landscape.curvature import DISTANCES, SubsetLoss, filter_normalized, loss_slice, random_rows


class _Quadratic(SubsetLoss):
    """Half of the sum of curvature x weight^2."""

    def __init__(self, weights: Tensor, curvature: Tensor) -> None:
        self.parameters, self._curvature = [nn.Parameter(weights)], curvature

    def value(self) -> float:
        return float((self._curvature * self.parameters[0].detach() ** 2).sum() / 2)


def _network(seed: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        # Without BatchNorm's small constant, so that rescaling changes nothing at all.
        norm = nn.BatchNorm2d(4, eps=0.0)
        norm.running_mean, norm.running_var = torch.randn(4), torch.rand(4) + 0.5
        network = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), norm, nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    return network.double().eval()


def _loss(network: nn.Module) -> SubsetLoss:
    rng = np.random.default_rng(0)
    images, labels = torch.from_numpy(rng.normal(size=(10, 3, 5, 5))), torch.from_numpy(rng.integers(0, 3, 10))
    return SubsetLoss(network, images, labels)


def test_a_quadratics_slice_is_the_parabola_and_leaves_the_weights() -> None:
    weights, curvature = (
        torch.tensor([[3.0, 4.0], [0.0, 2.0]]).double(),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double(),
    )
    loss, direction = _Quadratic(weights.clone(), curvature), torch.tensor([[1.0, -1.0], [0.5, 0.0]]).double()
    linear, square = float((curvature * weights * direction).sum()), float((curvature * direction**2).sum())
    expected = loss.value() + linear * DISTANCES + square * DISTANCES**2 / 2
    np.testing.assert_allclose(loss_slice(loss, [direction], DISTANCES), expected)
    assert loss.parameters[0].equal(weights)


def test_filters_have_the_networks_norms_and_the_rest_stays() -> None:
    parameters = list(_network(0).parameters())
    for parameter, part in zip(parameters, filter_normalized(parameters, seed=1), strict=True):
        if parameter.ndim < 2:
            assert not part.any()
        else:
            np.testing.assert_allclose(part.flatten(1).norm(dim=1), parameter.detach().flatten(1).norm(dim=1))


@settings(max_examples=20, deadline=None)
@given(factors=st.lists(st.floats(0.05, 20), min_size=4, max_size=4), seed=st.integers(0, 100))
def test_rescaling_filters_before_batch_norm_changes_no_slice(factors: list[float], seed: int) -> None:
    network, rescaled, scale = _network(seed), _network(seed), torch.tensor(factors).double()
    convolution, norm = rescaled[0], rescaled[1]
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    with torch.no_grad():
        convolution.weight *= scale.view(-1, 1, 1, 1)
        norm.running_mean *= scale
        norm.running_var *= scale**2
    losses = (_loss(network), _loss(rescaled))
    slices = [loss_slice(loss, filter_normalized(loss.parameters, seed=3), DISTANCES) for loss in losses]
    np.testing.assert_allclose(slices[0], slices[1], rtol=1e-6)
    assert np.ptp(slices[0]) > 0


@pytest.mark.parametrize("n", [1, 7, 20])
def test_the_subset_is_sampled_once_and_has_no_image_twice(n: int) -> None:
    ids = random_rows(20, n, seed=0)
    assert len(set(ids.tolist())) == n
    assert ids.tolist() == sorted(ids.tolist())
    assert np.array_equal(ids, random_rows(20, n, seed=0))
