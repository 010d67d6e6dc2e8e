"""The largest eigenvalue of a symmetric matrix that is known by its products with vectors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.landscape.loss import inner

Product = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""A vector, cut into tensors, to the matrix times it."""


@dataclass(frozen=True, kw_only=True)
class TopEigenvalue:
    """The algebraically largest eigenvalue, as far as it was found.

    Attributes:
        value: Rayleigh quotient of the last vector.
        residual: |H v - value v| of the unit vector v: an eigenvalue of the matrix is at most so far away.
        products: matrix-vector products that it took.
        converged: whether the residual became small beside the eigenvalue of largest magnitude.
    """

    value: float
    residual: float
    products: int
    converged: bool


def top_eigenvalue(
    product: Product, like: Sequence[Tensor], *, seed: int, tolerance: float = 0.03, most: int = 200
) -> TopEigenvalue:
    """Power iteration from a random vector (Golub and Van Loan 2013, Matrix Computations, section 8.2.1).

    It finds the eigenvalue of largest magnitude. Where that is negative, it is subtracted from all of them and the
    iteration runs again, towards the one at the other end.

    Args:
        product: of a symmetric matrix.
        like: tensors whose shapes, types and devices the vectors have.
        seed: of the first vector.
        tolerance: of the residual, as a share of the eigenvalue of largest magnitude. The eigenvalue's own error is
            about the square of it, divided by the relative gap to the next one.
        most: products for each of both iterations.
    """
    found = _iterate(product, like, 0.0, seed=seed, tolerance=tolerance, most=most)
    if not found.converged or found.value >= 0:
        return found
    shifted = _iterate(product, like, found.value, seed=seed, tolerance=tolerance, most=most)
    return TopEigenvalue(
        value=shifted.value + found.value,
        residual=shifted.residual,
        products=found.products + shifted.products,
        converged=shifted.converged,
    )


def _iterate(
    product: Product, like: Sequence[Tensor], shift: float, *, seed: int, tolerance: float, most: int
) -> TopEigenvalue:
    """Of the matrix minus `shift` times the identity."""
    vector = _unit(random_tensors(like, seed))
    value = residual = 0.0
    for count in range(1, most + 1):
        image = [part - shift * own for part, own in zip(product(vector), vector, strict=True)]
        value = float(inner(image, vector))
        rest = [part - value * own for part, own in zip(image, vector, strict=True)]
        residual = float(inner(rest, rest)) ** 0.5
        if residual <= tolerance * abs(value):
            return TopEigenvalue(value=value, residual=residual, products=count, converged=True)
        vector = _unit(image)
    return TopEigenvalue(value=value, residual=residual, products=most, converged=False)


def random_tensors(like: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Standard normal values in the shapes of `like`; the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(part.shape, generator=generator).to(part.device, part.dtype) for part in like]


def _unit(vector: Sequence[Tensor]) -> list[Tensor]:
    length = inner(vector, vector).sqrt()
    return [part / length for part in vector]
