"""Which parameters are decayed."""

from typing import Any

from torch import nn


def parameter_groups(model: nn.Module, *, weight_decay: float, decay_norm_and_bias: bool) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer.

    Args:
        decay_norm_and_bias: False exempts all vectors and scalars, which in a ResNet are the
            BatchNorm parameters and the biases (Goyal et al. 2017, section 5.1).
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if decay_norm_and_bias:
        return [{"params": parameters, "weight_decay": weight_decay}]
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
