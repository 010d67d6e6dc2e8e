"""Stochastic gradient descent."""

from typing import Any

import torch


def sgd(
    groups: list[dict[str, Any]], learning_rate: float, *, momentum: float, nesterov: bool
) -> torch.optim.Optimizer:
    """torch's SGD with (Nesterov) momentum, updating all parameters in one fused kernel."""
    return torch.optim.SGD(groups, lr=learning_rate, momentum=momentum, nesterov=nesterov, fused=True)
