"""Stochastic gradient descent."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd as fused_step


def sgd(
    groups: list[dict[str, Any]], learning_rate: float, *, momentum: float, nesterov: bool
) -> torch.optim.Optimizer:
    """torch's SGD with (Nesterov) momentum, updating all parameters in one fused kernel."""
    return _Sgd(groups, lr=learning_rate, momentum=momentum, nesterov=nesterov, fused=True)


class _Sgd(torch.optim.SGD):
    """torch's SGD without the copies that its fused CPU kernel makes of channels_last tensors.

    The kernel works on memory in order, whatever the dimensions mean, but first copies every tensor whose last
    dimension is not the innermost: half of its time for a ResNet. Here it gets the same memory as views with the
    dimensions in order. State and results are those of torch's class, bit by bit.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of all parameters that have a gradient; a closure is not supported."""
        assert closure is None, "gradients are computed before the step"
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            buffers = [self.state[p].get("momentum_buffer") for p in parameters]
            orders = [_memory_order(p) for p in parameters]
            dense_buffers = [_in_order(buffer, order) for buffer, order in zip(buffers, orders, strict=True)]
            fused_step(
                [_in_order(p, order) for p, order in zip(parameters, orders, strict=True)],
                # A gradient of other strides is copied into those of its parameter.
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
    """Dimensions from the outermost in memory to the innermost."""
    strides, sizes = tensor.stride(), tensor.shape
    return sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], -sizes[dim]))


def _inverse(order: list[int]) -> list[int]:
    return [order.index(dim) for dim in range(len(order))]


def _in_order(tensor: Any, order: list[int]) -> Any:
    return None if tensor is None else tensor.permute(order)
