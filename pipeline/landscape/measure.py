"""What one trained network's loss looks like around its weights."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pipeline.landscape.hessian import TopEigenvalue, top_eigenvalue
from pipeline.landscape.loss import SubsetLoss
from pipeline.landscape.slices import filter_normalised, loss_slice
from pipeline.models.network import Network

DISTANCES = np.linspace(-1, 1, 21)
"""Of the slices, in units of the filters' norms: at 1 a filter has moved by as much as it is long."""
NEAR = 0.5
"""Up to here a slice says something of the weights; the networks at its ends are wrecks."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One network.

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
        """Mean over the slices, up to the distance NEAR, of the loss minus that at the weights, in nats."""
        near = np.abs(DISTANCES) < NEAR + 1e-9
        return float(self.slices[:, near].mean() - self.loss)


def chosen_ids(n_all: int, n: int, seed: int) -> NDArray[np.int64]:
    """`n` of `n_all` rows, drawn without looking at what any filter keeps; ascending."""
    return np.sort(np.random.default_rng(seed).choice(n_all, size=n, replace=False))


def measure(model: Network, images: Tensor, labels: Tensor, *, directions: int, seed: int) -> Measurement:
    """Eigenvalue and slices; the weights are left as they were.

    Args:
        model: in evaluation mode.
        images: (n, 3, C, C) on its device, without augmentation.
        labels: (n,) int64 on its device.
        directions: how many slices.
        seed: for the first vector of the eigenvalue's iteration and for the directions, the same for all networks.
    """
    loss = SubsetLoss(model, images, labels)
    slices = [
        loss_slice(loss, filter_normalised(loss.parameters, seed + direction), DISTANCES)
        for direction in range(directions)
    ]
    top = top_eigenvalue(loss.hessian_product, loss.parameters, seed=seed)
    return Measurement(loss=loss.value(), top=top, slices=np.stack(slices))
