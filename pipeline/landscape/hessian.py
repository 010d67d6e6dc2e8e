"""The largest eigenvalue of a symmetric matrix that is known by its products with vectors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor

Product = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""A vector, cut into tensors, to the matrix times it."""

# ARPACK keeps these and four more vectors of the length of all parameters in main memory: .5 GB for a ResNet-18. On
# spectra with a few large eigenvalues, bases of 4, 8 and 20 took 7, 9 and 21 products; from 8 on the eigenvalue was
# exact to .2 %.
_BASIS = 8


@dataclass(frozen=True, kw_only=True)
class TopEigenvalue:
    """The algebraically largest eigenvalue.

    Attributes:
        value: Rayleigh quotient of the unit vector v that the iteration ends with; None where it did not converge.
        residual: |H v - value v|, the largest distance from `value` to the nearest eigenvalue; None as `value`.
        products: number of matrix-vector products computed.
        converged: whether the iteration reached its tolerance.
    """

    value: float | None
    residual: float | None
    products: int
    converged: bool


def top_eigenvalue(
    product: Product, like: Sequence[Tensor], *, seed: int, tolerance: float = 0.03, max_products: int = 200
) -> TopEigenvalue:
    """Implicitly restarted Lanczos iteration from a random vector (ARPACK through `scipy.sparse.linalg.eigsh`).

    Lehoucq, Sorensen and Yang 1998, ARPACK Users' Guide, doi:10.1137/1.9780898719628. The other end of the spectrum,
    however far below 0, does not get in its way.

    Args:
        product: multiplies by a symmetric matrix, whose size is 2 or more. It neither changes nor keeps its argument.
        like: tensors with the shapes, types and devices of the vectors.
        seed: for the first vector.
        tolerance: bound on the residual relative to the eigenvalue. The error of the eigenvalue itself is about
            residual^2 / gap, with the gap to the next eigenvalue. The iteration looks only when its basis is full, so
            that the residual is usually far below the bound.
        max_products: stop after about this many products.

    Returns:
        Not converged where `max_products` do not suffice or products are not finite. 0 where the first product is 0.
    """
    start = _flattened(random_tensors(like, seed))
    products = 0

    def multiply(vector: NDArray[np.floating]) -> NDArray[np.floating]:
        nonlocal products
        products += 1
        return _flattened(product(_cut(vector, like)))

    # Versions of ARPACK differ in what they do with these two.
    image = multiply(start)
    if not np.isfinite(image).all():
        return TopEigenvalue(value=None, residual=None, products=products, converged=False)
    if not image.any():
        return TopEigenvalue(value=0.0, residual=0.0, products=products, converged=True)
    try:
        values, vectors = eigsh(
            LinearOperator((len(start), len(start)), matvec=multiply, dtype=start.dtype),
            k=1,
            which="LA",
            v0=start,
            ncv=min(_BASIS, len(start)),
            tol=tolerance,
            maxiter=max(1, max_products // _BASIS),
        )
    except ArpackError:
        return TopEigenvalue(value=None, residual=None, products=products, converged=False)
    value, vector = float(values[0]), vectors[:, 0]
    residual = float(np.linalg.norm(multiply(vector) - value * vector))
    return TopEigenvalue(value=value, residual=residual, products=products, converged=True)


def random_tensors(like: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Standard normal values in the shapes of `like`; the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(part.shape, generator=generator).to(part.device, part.dtype) for part in like]


def _flattened(parts: Sequence[Tensor]) -> NDArray[np.floating]:
    """(n,) of all parts, in main memory."""
    flat: NDArray[np.floating] = torch.cat([part.detach().flatten() for part in parts]).cpu().numpy()
    return flat


def _cut(vector: NDArray[np.floating], like: Sequence[Tensor]) -> list[Tensor]:
    """A vector (n,) as tensors like those of `like`."""
    parts = torch.from_numpy(vector).split([part.numel() for part in like])
    return [part.view(model.shape).to(model.device) for part, model in zip(parts, like, strict=True)]
