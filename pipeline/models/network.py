"""The interface of all networks."""

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Network(nn.Module, ABC):
    """A classifier in two parts: penultimate features, and logits from them.

    Attributes:
        logit_scale: factor of the output layer's values.
    """

    logit_scale = 1.0

    @property
    @abstractmethod
    def input_layer(self) -> nn.Module:
        """The convolution that sees the images."""

    @property
    @abstractmethod
    def output_layer(self) -> nn.Module:
        """The linear layer that gives the logits."""

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, D), the input of the last linear layer."""

    @abstractmethod
    def classify(self, features: Tensor) -> Tensor:
        """(N, D) -> (N, n_classes) logits."""

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, n_classes) logits."""
        return self.classify(self.features(images))
