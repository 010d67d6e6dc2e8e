"""What every network offers: penultimate features, and logits from them."""

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Network(nn.Module, ABC):
    """A classifier in two parts."""

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
        """(N, 3, H, W) -> (N, D), what the last linear layer sees."""

    @abstractmethod
    def classify(self, features: Tensor) -> Tensor:
        """(N, D) -> (N, n_classes) logits."""

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, n_classes) logits."""
        return self.classify(self.features(images))
