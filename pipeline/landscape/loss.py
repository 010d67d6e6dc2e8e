"""The loss of a trained network on a fixed set of images, as a function of its weights."""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SubsetLoss:
    """Mean cross-entropy in nats over images that stay the same, without label smoothing and weight decay.

    BatchNorm is in evaluation mode: the statistics are those that the trained network has, so that the loss is a
    function of the weights alone and each image counts by itself.

    Args:
        model: in evaluation mode; its parameters are those that the loss is a function of.
        images: (N, 3, H, W), on the model's device and of its type.
        labels: (N,) int64.
        batch_size: images that pass forward together; changes the result by rounding alone.
    """

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor, *, batch_size: int = 128) -> None:
        assert not model.training, "BatchNorm of a batch is no function of the weights alone"
        assert len(images) == len(labels) > 0, (len(images), len(labels))
        self.model = model
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._images, self._labels, self._batch_size = images, labels, batch_size

    @torch.no_grad()
    def value(self) -> float:
        """At the parameters as they are."""
        return sum(float(part) for part in self._parts())

    def hessian_product(self, vector: Sequence[Tensor]) -> list[Tensor]:
        """The Hessian at the parameters, times `vector`; both have the parameters' shapes.

        The gradient of the gradient's inner product with the vector (Pearlmutter 1994, doi:10.1162/neco.1994.6.1.147),
        summed over batches.
        """
        product = [torch.zeros_like(parameter) for parameter in self.parameters]
        for part in self._parts():
            gradient = torch.autograd.grad(part, self.parameters, create_graph=True)
            along = inner(gradient, vector)
            for total, term in zip(product, self._gradient_of(along), strict=True):
                total += term
        return product

    def _gradient_of(self, value: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad(value, self.parameters, allow_unused=True, materialize_grads=True)

    def _parts(self) -> Iterator[Tensor]:
        """Each batch's share of the mean."""
        for images, labels in zip(
            self._images.split(self._batch_size), self._labels.split(self._batch_size), strict=True
        ):
            yield F.cross_entropy(self.model(images), labels, reduction="sum") / len(self._labels)


def inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """Inner product of two vectors that are cut into tensors of the same shapes; 0-dimensional."""
    return torch.stack([(a * b).sum() for a, b in zip(left, right, strict=True)]).sum()
