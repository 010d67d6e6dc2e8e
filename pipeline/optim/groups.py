"""Which parameters are decayed, and which are hidden weight matrices."""

from collections.abc import Iterable
from typing import Any

from torch import nn


def parameter_groups(
    model: nn.Module, *, weight_decay: float, decay_norm_and_bias: bool, outer_layers: Iterable[nn.Module] = ()
) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer.

    Args:
        weight_decay: of all parameters that are decayed.
        decay_norm_and_bias: False exempts all vectors and scalars, which in a ResNet are the
            BatchNorm parameters and the biases (Goyal et al. 2017, section 5.1).
        outer_layers: those that see the images or give the logits.

    Returns:
        Groups that are not empty, each with `params`, `weight_decay`, and two marks. `hidden`: it holds the matrices
        and filters of all layers but the outer ones, which is what Muon is made for. `exempt`: it holds the vectors
        and scalars that are not decayed, whatever the others are.
    """
    outer = {id(parameter) for layer in outer_layers for parameter in layer.parameters()}
    hidden: list[nn.Parameter] = []
    outer_matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim <= 1:
            vectors.append(parameter)
        elif id(parameter) in outer:
            outer_matrices.append(parameter)
        else:
            hidden.append(parameter)
    groups: list[dict[str, Any]] = [{"params": hidden, "weight_decay": weight_decay, "hidden": True, "exempt": False}]
    if decay_norm_and_bias:
        outer_matrices += vectors
        vectors = []
    groups.append({"params": outer_matrices, "weight_decay": weight_decay, "hidden": False, "exempt": False})
    groups.append({"params": vectors, "weight_decay": 0.0, "hidden": False, "exempt": True})
    return [group for group in groups if group["params"]]
