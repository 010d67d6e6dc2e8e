"""Layer-wise adaptive rate scaling (You, Gitman & Ginsburg 2017, Large Batch Training of Convolutional Networks)."""

from typing import Any

from torch.optim import Optimizer


def lars(
    groups: list[dict[str, Any]], learning_rate: float, *, momentum: float, nesterov: bool, trust_coefficient: float
) -> Optimizer:
    """timm's LARS: each tensor's step is scaled by trust_coefficient x |w| / (|g| + decay |w|).

    BatchNorm parameters and biases that are exempt from decay take plain steps of momentum, as in the
    paper; all others are scaled, whether they are decayed or not.
    """
    from timm.optim.lars import Lars  # seconds to import; few runs need it

    # timm scales groups with weight decay alone, unless told otherwise.
    groups = [{**group, "always_adapt": not group.get("exempt", False)} for group in groups]
    return Lars(groups, lr=learning_rate, momentum=momentum, nesterov=nesterov, trust_coeff=trust_coefficient)
