"""Measure the loss around trained weights: one-dimensional slices, and the largest eigenvalue of the Hessian."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor, nn

from pipeline.models.network import Network

DISTANCES = np.linspace(-1, 1, 21)
"""Distances of the slices, in units of the filters' norms: at 1 a filter has moved by its own length."""

RISE_RADIUS = 0.5
"""Distance up to which a slice describes the weights; networks at the ends of a slice classify badly."""


class SubsetLoss:
    """Mean cross-entropy in nats over fixed images as a function of the weights, without label smoothing and decay.

    BatchNorm is in evaluation mode, with the trained network's statistics. So the loss is a function of the weights
    alone and images are independent.

    Args:
        model: in evaluation mode; the loss is a function of its parameters.
        images: (N, 3, H, W), on the model's device and of its type.
        labels: (N,) int64.
        batch_size: images per forward pass; changes the result only by rounding.
    """

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor, *, batch_size: int = 128) -> None:
        assert not model.training, "the loss depends only on the weights if BatchNorm is in evaluation mode"
        assert len(images) == len(labels) > 0, (len(images), len(labels))
        self.model = model
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._images, self._labels, self._batch_size = images, labels, batch_size

    @torch.no_grad()
    def value(self) -> float:
        """Return the loss at the current parameters."""
        return sum(float(part) for part in self._parts())

    def hessian_product(self, vector: Sequence[Tensor]) -> list[Tensor]:
        """Return the Hessian at the current parameters times `vector`, which has the parameters' shapes.

        The gradient of the gradient's inner product with the vector (Pearlmutter 1994, doi:10.1162/neco.1994.6.1.147),
        summed over batches.
        """
        product = [torch.zeros_like(parameter) for parameter in self.parameters]
        for part in self._parts():
            gradient = torch.autograd.grad(part, self.parameters, create_graph=True)
            directional = inner(gradient, vector)
            for total, term in zip(product, self._gradient(directional), strict=True):
                total += term
        return product

    def _gradient(self, value: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad(value, self.parameters, allow_unused=True, materialize_grads=True)

    def _parts(self) -> Iterator[Tensor]:
        """Yield each batch's share of the mean."""
        for images, labels in zip(
            self._images.split(self._batch_size), self._labels.split(self._batch_size), strict=True
        ):
            yield F.cross_entropy(self.model(images), labels, reduction="sum") / len(self._labels)


def inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """Return the inner product of two vectors that are split into tensors of the same shapes; 0-dimensional."""
    return torch.stack([(a * b).sum() for a, b in zip(left, right, strict=True)]).sum()


Product = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""From a vector, split into tensors, to the matrix times the vector."""

# ARPACK keeps these and four more vectors of the length of all parameters in main memory: 0.5 GB for a ResNet-18. On
# spectra with a few large eigenvalues, bases of 4, 8 and 20 took 7, 9 and 21 products; from 8 on the eigenvalue was
# exact to 0.2 %.
_BASIS = 8


@dataclass(frozen=True, kw_only=True)
class TopEigenvalue:
    """The algebraically largest eigenvalue.

    Attributes:
        value: Rayleigh quotient of the unit vector v that the iteration ends with; None if it did not converge.
        residual: |H v - value v|, the largest distance from `value` to the nearest eigenvalue; None with `value`.
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
    """Return the largest eigenvalue of a symmetric matrix that is given by its products with vectors.

    Implicitly restarted Lanczos iteration from a random vector (ARPACK through `scipy.sparse.linalg.eigsh`; Lehoucq,
    Sorensen and Yang 1998, ARPACK Users' Guide, doi:10.1137/1.9780898719628). The other end of the spectrum does not
    matter, however far below 0 it is.

    Args:
        product: multiplies by a symmetric matrix, whose size is 2 or more. It neither changes nor keeps its argument.
        like: tensors with the shapes, types and devices of the vectors.
        seed: for the first vector.
        tolerance: bound on the residual relative to the eigenvalue. The error of the eigenvalue itself is about
            residual^2 / gap, with the gap to the next eigenvalue. The iteration checks only when its basis is full, so
            that the residual is usually far below the bound.
        max_products: stop after about this many products.

    Returns:
        Not converged if `max_products` are too few or products are not finite. 0 if the first product is 0.
    """
    start = _flattened(random_tensors(like, seed))
    products = 0

    def multiply(vector: NDArray[np.floating]) -> NDArray[np.floating]:
        nonlocal products
        products += 1
        return _flattened(product(_unflattened(vector, like)))

    # Versions of ARPACK treat these two cases differently.
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
    """Return standard normal values in the shapes of `like`; the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(part.shape, generator=generator).to(part.device, part.dtype) for part in like]


def _flattened(parts: Sequence[Tensor]) -> NDArray[np.floating]:
    """Return all parts as one array (n,), in main memory."""
    flat: NDArray[np.floating] = torch.cat([part.detach().flatten() for part in parts]).cpu().numpy()
    return flat


def _unflattened(vector: NDArray[np.floating], like: Sequence[Tensor]) -> list[Tensor]:
    """Return a vector (n,) as tensors with the shapes of `like`."""
    parts = torch.from_numpy(vector).split([part.numel() for part in like])
    return [part.view(model.shape).to(model.device) for part, model in zip(parts, like, strict=True)]


def filter_normalized(parameters: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Return a random direction in which each filter has the norm of the network's filter.

    H. Li, Z. Xu, G. Taylor, C. Studer, T. Goldstein (2018), "Visualizing the loss landscape of neural nets", section 4:
    a layer before BatchNorm can be rescaled without changing the network's output, so that steps of one length mean
    different things to different networks. Scaled to the norms of the network's filters, they can be compared.

    A filter produces one output channel: a row (O, ...) of a convolution's or a linear layer's weights. Biases
    and BatchNorm's parameters, which have one axis, do not move.

    Args:
        parameters: of the network.
        seed: the same seed gives all networks of one shape the same direction before scaling.
    """
    direction = random_tensors(parameters, seed)
    for parameter, part in zip(parameters, direction, strict=True):
        if parameter.ndim < 2:
            part.zero_()
        else:
            part *= (_norms(parameter) / _norms(part)).view(-1, *[1] * (part.ndim - 1))
    return direction


@torch.no_grad()
def loss_slice(loss: SubsetLoss, direction: Sequence[Tensor], distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return losses (D,) at the weights plus each of `distances` (D,) times `direction`; restores the weights."""
    weights = [parameter.clone() for parameter in loss.parameters]
    losses = []
    for distance in distances.tolist():
        for parameter, origin, part in zip(loss.parameters, weights, direction, strict=True):
            parameter.copy_(origin + distance * part)
        losses.append(loss.value())
    for parameter, origin in zip(loss.parameters, weights, strict=True):
        parameter.copy_(origin)
    return np.array(losses)


def _norms(tensor: Tensor) -> Tensor:
    """Return the norm (O,) of each filter."""
    norms: Tensor = tensor.detach().flatten(1).norm(dim=1)
    return norms


@dataclass(frozen=True, kw_only=True)
class LandscapeMeasurement:
    """The loss landscape of one network.

    Attributes:
        loss: at its weights, in nats.
        top: eigenvalue of the loss's Hessian.
        slices: (directions, len(DISTANCES)), losses in nats.
    """

    loss: float
    top: TopEigenvalue
    slices: NDArray[np.float64]

    @property
    def rise(self) -> float:
        """Mean over the slices, up to the distance RISE_RADIUS, of the loss minus that at the weights, in nats."""
        near = np.abs(DISTANCES) < RISE_RADIUS + 1e-9
        return float(self.slices[:, near].mean() - self.loss)


def random_rows(n_all: int, n: int, seed: int) -> NDArray[np.int64]:
    """Return `n` of `n_all` rows, sampled independently of any filter, ascending."""
    return np.sort(np.random.default_rng(seed).choice(n_all, size=n, replace=False))


def measure(model: Network, images: Tensor, labels: Tensor, *, directions: int, seed: int) -> LandscapeMeasurement:
    """Measure the eigenvalue and the slices; restores the weights.

    Args:
        model: in evaluation mode.
        images: (n, 3, C, C) on its device, without augmentation.
        labels: (n,) int64 on its device.
        directions: number of slices.
        seed: for the first vector of the eigenvalue's iteration and for the directions, the same for all networks.
    """
    loss = SubsetLoss(model, images, labels)
    slices = [
        loss_slice(loss, filter_normalized(loss.parameters, seed + direction), DISTANCES)
        for direction in range(directions)
    ]
    top = top_eigenvalue(loss.hessian_product, loss.parameters, seed=seed)
    return LandscapeMeasurement(loss=loss.value(), top=top, slices=np.stack(slices))
