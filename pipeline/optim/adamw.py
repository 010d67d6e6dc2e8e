"""AdamW (Loshchilov & Hutter 2019, Decoupled Weight Decay Regularization)."""

from typing import Any

import torch


def adamw(
    groups: list[dict[str, Any]], learning_rate: float, *, beta1: float, beta2: float, eps: float
) -> torch.optim.Optimizer:
    """torch's AdamW, updating all parameters in one fused kernel."""
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(beta1, beta2), eps=eps, fused=True)
