"""Muon (Jordan et al. 2024): momentum steps of weight matrices, orthogonalised by Newton-Schulz iterations."""

from typing import Any

from torch.optim import Optimizer


def muon(groups: list[dict[str, Any]], learning_rate: float, *, momentum: float, nesterov: bool) -> Optimizer:
    """timm's Muon: convolution filters as matrices (out, in x height x width), vectors by AdamW."""
    from timm.optim.muon import Muon  # seconds to import; few runs need it

    return Muon(groups, lr=learning_rate, momentum=momentum, nesterov=nesterov)
