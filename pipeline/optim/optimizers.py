"""Constructors of the optimizers, and the parameter groups that they share."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.sgd import sgd as fused_step


def parameter_groups(
    model: nn.Module, *, weight_decay: float, decay_norm_and_bias: bool, outer_layers: Iterable[nn.Module] = ()
) -> list[dict[str, Any]]:
    """Split a model's parameters into groups for an optimizer.

    Args:
        weight_decay: of all parameters that are decayed.
        decay_norm_and_bias: False exempts all vectors and scalars, which in a ResNet are the
            BatchNorm parameters and the biases (Goyal et al. 2017, section 5.1).
        outer_layers: the layers that read the images or give the logits.

    Returns:
        Nonempty groups, each with `params`, `weight_decay`, and two flags. `hidden`: matrices and filters of all layers
        but the outer ones, for Muon. `exempt`: vectors and scalars that are not decayed.
    """
    outer = {id(parameter) for layer in outer_layers for parameter in layer.parameters()}
    hidden: list[nn.Parameter] = []
    outer_matrices: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if _is_vector(parameter):
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


def _is_vector(parameter: nn.Parameter) -> bool:
    """Return whether it is a vector or scalar: also class tokens (1, 1, D), positions (1, N, D), scales (C, 1, 1)."""
    return parameter.ndim <= 1 or (parameter.ndim > 2 and parameter.shape[0] in (1, parameter.numel()))


def sgd(
    groups: list[dict[str, Any]], learning_rate: float, *, momentum: float, nesterov: bool
) -> torch.optim.Optimizer:
    """Build torch's SGD with (Nesterov) momentum, which updates all parameters in one fused kernel."""
    return _Sgd(groups, lr=learning_rate, momentum=momentum, nesterov=nesterov, fused=True)


class _Sgd(torch.optim.SGD):
    """torch's SGD without the copies that its fused CPU kernel makes of channels_last tensors.

    The kernel works on memory in order, independent of the dimensions, but first copies every tensor whose last
    dimension is not the innermost: half of its time for a ResNet. This class passes the same memory as views with the
    dimensions in order. State and results equal those of torch's class, bit by bit. The kernel of a GPU takes any
    order, and views cost the process more time than the GPU needs for the update.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient; a closure is not supported."""
        assert closure is None, "gradients are computed before the step"
        if not self.param_groups[0]["params"][0].is_cpu:
            super().step()
            return
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            buffers = [self.state[p].get("momentum_buffer") for p in parameters]
            orders = [_memory_order(p) for p in parameters]
            dense_buffers = [_in_order(buffer, order) for buffer, order in zip(buffers, orders, strict=True)]
            fused_step(
                [_in_order(p, order) for p, order in zip(parameters, orders, strict=True)],
                # A gradient of other strides is copied to the strides of its parameter.
                [_in_order(p.grad, order).contiguous() for p, order in zip(parameters, orders, strict=True)],
                dense_buffers,
                fused=True,
                weight_decay=group["weight_decay"], momentum=group["momentum"], lr=group["lr"],
                dampening=group["dampening"], nesterov=group["nesterov"], maximize=group["maximize"],
            )  # fmt: skip
            if group["momentum"]:
                for p, order, buffer in zip(parameters, orders, dense_buffers, strict=True):
                    self.state[p]["momentum_buffer"] = buffer.permute(_inverse(order))


def _memory_order(tensor: Tensor) -> list[int]:
    """Return the dimensions from the outermost in memory to the innermost."""
    strides, sizes = tensor.stride(), tensor.shape
    return sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], -sizes[dim]))


def _inverse(order: list[int]) -> list[int]:
    return [order.index(dim) for dim in range(len(order))]


def _in_order(tensor: Any, order: list[int]) -> Any:
    return None if tensor is None else tensor.permute(order)


def adamw(
    groups: list[dict[str, Any]], learning_rate: float, *, beta1: float, beta2: float, eps: float
) -> torch.optim.Optimizer:
    """Build torch's AdamW, which updates all parameters in one fused kernel.

    Loshchilov & Hutter 2019, Decoupled Weight Decay Regularization.
    """
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(beta1, beta2), eps=eps, fused=True)


def radam(
    groups: list[dict[str, Any]], learning_rate: float, *, beta1: float, beta2: float, eps: float
) -> torch.optim.Optimizer:
    """Build torch's RAdam (rectified Adam) with weight decay decoupled from the gradient, as in AdamW.

    Liu et al. 2020, On the Variance of the Adaptive Learning Rate and Beyond.
    """
    return torch.optim.RAdam(groups, lr=learning_rate, betas=(beta1, beta2), eps=eps, decoupled_weight_decay=True)


def lars(
    groups: list[dict[str, Any]], learning_rate: float, *, momentum: float, nesterov: bool, trust_coefficient: float
) -> Optimizer:
    """Build timm's LARS: each tensor's step is scaled by trust_coefficient x |w| / (|g| + decay |w|).

    You, Gitman & Ginsburg 2017, Large Batch Training of Convolutional Networks.

    BatchNorm parameters and biases that are exempt from decay take plain steps of momentum, as in the paper. All others
    are scaled, whether they are decayed or not.
    """
    from timm.optim.lars import Lars  # seconds to import; few runs need it

    # By default timm scales only groups with weight decay.
    groups = [{**group, "always_adapt": not group.get("exempt", False)} for group in groups]
    return Lars(groups, lr=learning_rate, momentum=momentum, nesterov=nesterov, trust_coeff=trust_coefficient)


def lamb(groups: list[dict[str, Any]], learning_rate: float, *, beta1: float, beta2: float, eps: float) -> Optimizer:
    """Build timm's LAMB: Adam's step, scaled for each tensor by |w| / |step|.

    You et al. 2020, Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, algorithm 2.

    BatchNorm parameters and biases that are exempt from decay take plain steps of Adam. All others are scaled, whether
    they are decayed or not. Algorithm 2 scales every layer. The authors' code for BERT exempts from scaling what it
    exempts from weight decay by name: normalization and biases.

    By default timm clips the global gradient norm to 1. Clipping is a setting of the recipe here, and off in the
    optimizer.
    """
    from timm.optim.lamb import Lamb  # seconds to import; few runs need it

    # By default timm scales only groups with weight decay.
    groups = [{**group, "always_adapt": not group.get("exempt", False)} for group in groups]
    return Lamb(groups, lr=learning_rate, betas=(beta1, beta2), eps=eps, max_grad_norm=None)
