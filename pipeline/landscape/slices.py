"""One-dimensional slices of the loss along filter-normalised random directions.

H. Li, Z. Xu, G. Taylor, C. Studer, T. Goldstein (2018), "Visualizing the loss landscape of neural nets", section 4:
a layer before BatchNorm can be rescaled without changing what the network says, so that steps of one length mean
different things to different networks. Scaled to the norms of the network's own filters, they can be compared.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.landscape.hessian import random_tensors
from pipeline.landscape.loss import SubsetLoss


def filter_normalised(parameters: Sequence[Tensor], seed: int) -> list[Tensor]:
    """A random direction in which each filter has the norm of the network's own.

    A filter is what makes one output channel: a row (O, ...) of a convolution's or a linear layer's weights. Biases
    and BatchNorm's parameters, which have one axis, stay where they are.

    Args:
        parameters: of the network.
        seed: the same one gives all networks of one shape the same direction before it is scaled.
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
    """Losses (D,) at the weights plus each of `distances` (D,) times `direction`; the weights are left as they were."""
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
    """(O,), of each filter."""
    norms: Tensor = tensor.detach().flatten(1).norm(dim=1)
    return norms
