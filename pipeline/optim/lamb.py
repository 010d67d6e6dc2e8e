"""LAMB (You et al. 2020, Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, algorithm 2)."""

from typing import Any

from torch.optim import Optimizer


def lamb(groups: list[dict[str, Any]], learning_rate: float, *, beta1: float, beta2: float, eps: float) -> Optimizer:
    """timm's LAMB: Adam's step, scaled for each tensor by |w| / |step|.

    BatchNorm parameters and biases that are exempt from decay take plain steps of Adam; all others are scaled,
    whether they are decayed or not. Algorithm 2 scales every layer, and the authors' code for BERT exempts from
    scaling what it exempts from weight decay by name: normalization and biases.

    timm clips the global gradient norm to 1 unless told otherwise; clipping is a setting of the
    recipe here, and off in the optimizer.
    """
    from timm.optim.lamb import Lamb  # seconds to import; few runs need it

    # timm scales groups with weight decay alone, unless told otherwise.
    groups = [{**group, "always_adapt": not group.get("exempt", False)} for group in groups]
    return Lamb(groups, lr=learning_rate, betas=(beta1, beta2), eps=eps, max_grad_norm=None)
