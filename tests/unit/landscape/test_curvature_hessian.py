"""The top eigenvalue against matrices and networks whose eigenvalues are known."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from pipeline.landscape.curvature import SubsetLoss, TopEigenvalue, top_eigenvalue
from pipeline.models import build_network
from pipeline.models.small_maps import SmallMapConv2d
from tests.fixtures.training import distance


def _with_eigenvalues(values: Sequence[float], seed: int) -> Tensor:
    random = torch.randn(len(values), len(values), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    basis, _ = torch.linalg.qr(random)
    matrix: Tensor = basis @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ basis.T
    return matrix


def _top(matrix: Tensor, *, tolerance: float = 0.03, max_products: int = 200) -> TopEigenvalue:
    def product(vector: Sequence[Tensor]) -> list[Tensor]:
        return [matrix @ vector[0]]

    return top_eigenvalue(product, [matrix[0]], seed=0, tolerance=tolerance, max_products=max_products)


@settings(max_examples=30, deadline=None)
@given(
    top=st.floats(0.5, 50),
    others=st.lists(st.floats(-1, 0.8), min_size=1, max_size=30),
    seed=st.integers(0, 2**16),
)
def test_the_top_eigenvalue_is_found_next_to_a_larger_negative_one(top: float, others: list[float], seed: int) -> None:
    # The lowest is of larger magnitude in two of the cases, equal in one.
    for lowest in (-0.5, -1.0, -1.3):
        matrix = _with_eigenvalues([top, lowest * top, *(0.8 * top * value for value in others)], seed)
        result = _top(matrix, tolerance=1e-4, max_products=3000)
        assert result.converged
        assert result.value == pytest.approx(top, rel=1e-4)
        assert result.residual is not None
        assert result.residual <= 1.01e-4 * top
        distance = torch.linalg.eigvalsh(matrix) - result.value
        assert float(distance.abs().min()) <= result.residual + 1e-9


def test_top_eigenvalue_negative_definite_matches_dense() -> None:
    matrix = _with_eigenvalues(np.linspace(-5, -0.1, 40).tolist(), 1)
    assert _top(matrix, tolerance=1e-6, max_products=2000).value == pytest.approx(-0.1)


def test_tolerance_bounds_residual_relative_to_eigenvalue() -> None:
    # Evenly spread: hard enough that a loose tolerance stops earlier.
    matrix = _with_eigenvalues(np.linspace(-1, 1, 200).tolist(), 2)
    loose, strict = (_top(matrix, tolerance=tolerance, max_products=2000) for tolerance in (0.03, 1e-6))
    for result, tolerance in ((loose, 0.03), (strict, 1e-6)):
        assert result.value is not None
        assert result.residual is not None
        assert result.residual <= 1.01 * tolerance * result.value
    assert loose.products < strict.products
    assert strict.value == pytest.approx(1, rel=1e-9)


def test_too_few_products_give_no_value() -> None:
    matrix = _with_eigenvalues(np.linspace(-1, 1, 200).tolist(), 2)
    result = _top(matrix, tolerance=1e-9, max_products=24)
    assert (result.value, result.residual, result.converged) == (None, None, False)
    assert 16 <= result.products <= 32


@pytest.mark.parametrize(("factor", "expected"), [(0.0, (0.0, 0.0, True)), (float("nan"), (None, None, False))])
def test_zero_and_non_finite_matrix(factor: float, expected: tuple[float | None, float | None, bool]) -> None:
    result = _top(factor * torch.eye(20, dtype=torch.float64))
    assert (result.value, result.residual, result.converged) == expected
    assert result.products == 1


def test_equal_seeds_give_equal_bits_and_products_are_counted() -> None:
    matrix = _with_eigenvalues(np.linspace(-1, 3, 50).tolist(), 3).float()
    calls: list[torch.dtype] = []

    def product(vector: Sequence[Tensor]) -> list[Tensor]:
        calls.append(vector[0].dtype)
        return [(matrix @ torch.cat([part.flatten() for part in vector])).view(10, 5)]

    first, same, other = (top_eigenvalue(product, [matrix[0].view(10, 5)], seed=seed) for seed in (0, 0, 1))
    assert first == same
    assert first != other
    assert len(calls) == first.products + same.products + other.products
    assert set(calls) == {torch.float32}


class _Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)
        self.norm.running_mean, self.norm.running_var = torch.full((4,), 0.1), torch.full((4,), 0.7)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.norm(self.conv(images))).mean((2, 3)))
        return out


@pytest.fixture
def tiny() -> tuple[_Tiny, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = _Tiny().double().eval()
        return model, torch.randn(12, 3, 5, 5, dtype=torch.float64), torch.randint(0, 3, (12,))


def _whole_hessian(model: _Tiny, images: Tensor, labels: Tensor) -> Tensor:
    names = [name for name, _ in model.named_parameters()]
    shapes = [parameter.shape for parameter in model.parameters()]

    def loss(flat: Tensor) -> Tensor:
        parts = [part.view(shape) for part, shape in zip(flat.split([s.numel() for s in shapes]), shapes, strict=True)]
        logits = functional_call(model, dict(zip(names, parts, strict=True)), (images,))
        return nn.functional.cross_entropy(logits, labels)

    at = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    result: Tensor = torch.autograd.functional.hessian(loss, at)
    return result


def test_top_eigenvalue_of_network_matches_dense_hessian(tiny: tuple[_Tiny, Tensor, Tensor]) -> None:
    model, images, labels = tiny
    hessian = _whole_hessian(model, images, labels)
    loss = SubsetLoss(model, images, labels, batch_size=5)
    result = top_eigenvalue(loss.hessian_product, loss.parameters, seed=0, tolerance=1e-4)
    assert result.value == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-5)


def test_products_are_those_of_the_full_hessian_in_any_batches(tiny: tuple[_Tiny, Tensor, Tensor]) -> None:
    model, images, labels = tiny
    hessian = _whole_hessian(model, images, labels)
    vector = [torch.randn_like(parameter) for parameter in model.parameters()]
    expected = hessian @ torch.cat([part.flatten() for part in vector])
    for batch_size in (1, 5, 12):
        product = SubsetLoss(model, images, labels, batch_size=batch_size).hessian_product(vector)
        np.testing.assert_allclose(torch.cat([part.flatten() for part in product]).detach(), expected.detach())


@pytest.mark.slow
def test_products_of_a_resnet_on_small_maps_match_plain_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 16 pixels the last layers of ResNet-18 see maps of 1x1 and 2x2."""
    model = build_network("resnet18", 4, stem="imagenet", seed=0).double().eval()
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(9, 3, 16, 16, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (9,), generator=generator)
    loss = SubsetLoss(model, images, labels)
    vector = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in loss.parameters]

    def product() -> Tensor:
        return torch.cat([part.flatten() for part in loss.hessian_product(vector)]).detach()

    ours = product()
    monkeypatch.setattr(SmallMapConv2d, "forward", nn.Conv2d.forward)
    plain = product()
    assert 0 < distance(ours, plain) < 1e-12
