"""Layer-wise adaptive rate scaling (You, Gitman & Ginsburg 2017, Large Batch Training of Convolutional Networks)."""

from typing import Any

from torch.optim import Optimizer


def lars(
    groups: list[dict[str, Any]], learning_rate: float, *, momentum: float, nesterov: bool, trust_coefficient: float
) -> Optimizer:
    """timm's LARS: each tensor's step is scaled by trust_coefficient x |w| / (|g| + decay |w|).

    Only groups with weight decay are scaled, so exempt BatchNorm parameters and biases take plain
    steps of momentum, as the paper does.
    """
    from timm.optim.lars import Lars  # seconds to import; few runs need it

    return Lars(groups, lr=learning_rate, momentum=momentum, nesterov=nesterov, trust_coeff=trust_coefficient)
