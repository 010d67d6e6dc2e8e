"""Rectified Adam (Liu et al. 2020, On the Variance of the Adaptive Learning Rate and Beyond)."""

from typing import Any

import torch


def radam(
    groups: list[dict[str, Any]], learning_rate: float, *, beta1: float, beta2: float, eps: float
) -> torch.optim.Optimizer:
    """torch's RAdam with weight decay decoupled from the gradient, as in AdamW."""
    return torch.optim.RAdam(groups, lr=learning_rate, betas=(beta1, beta2), eps=eps, decoupled_weight_decay=True)
