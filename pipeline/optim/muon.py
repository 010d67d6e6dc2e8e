"""Muon (Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks).

A step moves a weight matrix W (m, n) by the nearest orthogonal matrix to its momentum M = U S V^T, which is U V^T:
the step has equal length in every direction. The quintic Newton-Schulz iteration finds it by matrix products alone,

    X_0 = M / |M|,    X_{k+1} = P_k X_k,    P_k = a_k I + b_k R_k + c_k R_k^2,    R_k = X_k X_k^T,

which drives each singular value of X to about 1. The P_k are polynomials of R_0, so all matrices of size (m, m)
here are symmetric and commute. Hence the wide matrix is needed twice only, at the start and at the end (the Gram
form; Dao AI Lab 2026, Gram Newton-Schulz):

    R_0 = M M^T / |M|^2,    R_{k+1} = P_k R_k P_k,    Q = P_4 P_3 P_2 P_1 P_0,    U V^T ~ Q M / |M|.

With m <= n these are 4 m^2 n + 34 m^3 multiplications and additions for five iterations, the plain form takes
20 m^2 n + 10 m^3: 2.7 times as many for a filter of 512 x 4608. |M|^2 is the trace of M M^T. Since n appears in no
R_k, the matrices of all shapes with the same smaller side go through the iteration as one batch. Columns of zeros at
either end of M add nothing to M M^T and are zero in U V^T. Small images cause many: of a 3x3 filter on a map of
one pixel, as in the last layers of a ResNet-18 at 32 pixels, all taps but one see only padding. On a CPU they are left
out; on a GPU, counting them would force a synchronization.

R_0 holds the squares of the singular values, of which half precision loses the small ones and makes some negative;
they then grow by a_k^2 in each iteration. So products are in the parameters' precision, float32, and never
in TF32 or half precision, for any precision of the recipe.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw

COEFFICIENTS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
"""(a, b, c) of each iteration (Cesista, You & Jordan 2025, Squeezing 1-2 % Efficiency Gains Out of Muon), as timm's."""

_SMALLEST_NORM = 1e-7  # momentum with a smaller norm makes a shorter step; timm's limit
_BETAS, _EPS = (0.9, 0.95), 1e-10  # the authors' values for the parameters that AdamW updates


class Muon(Optimizer):
    """Muon for the groups with `hidden` set, AdamW for all others, at the same learning rate.

    Filters (out, in, height, width) are matrices (out, in x height x width). Weight decay is decoupled:
    W <- (1 - rate x decay) W - rate x 0.2 sqrt(max(m, n)) U V^T. The factor makes the root mean square of a step's
    elements 0.2, about that of AdamW's, so that one learning rate and one weight decay serve both (Liu et al. 2025,
    Muon is Scalable for LLM Training, section 2.2).

    Args:
        groups: parameter groups with `weight_decay` and `hidden`, see `parameter_groups`; hidden ones hold matrices.
        momentum: weight of the past in the mean of gradients.
        nesterov: orthogonalize the mean of the gradient and the momentum, not the momentum.
    """

    def __init__(self, groups: list[dict[str, Any]], learning_rate: float, *, momentum: float, nesterov: bool) -> None:
        # `fused` makes torch restore AdamW's count of steps to the device of its parameter.
        groups = [{**group, "fused": not group["hidden"]} for group in groups]
        super().__init__(groups, {"lr": learning_rate, "momentum": momentum, "nesterov": nesterov})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            if group["hidden"]:
                self._step_hidden(parameters, group)
            else:
                self._step_adamw(parameters, group)
        return loss

    def _step_hidden(self, parameters: Sequence[Tensor], group: dict[str, Any]) -> None:
        rate, momentum = group["lr"], group["momentum"]
        by_side: dict[object, list[tuple[Tensor, Tensor, float]]] = defaultdict(list)
        for parameter in parameters:
            assert parameter.grad is not None
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            mean = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
            update = parameter.grad.lerp(mean, momentum) if group["nesterov"] else mean
            weight, matrix = _as_matrices(parameter, update)
            weight.mul_(1 - rate * group["weight_decay"])
            length = rate * 0.2 * math.sqrt(max(matrix.shape))
            used = _used_columns(matrix)
            weight, matrix = weight[:, used], matrix[:, used]
            by_side[min(matrix.shape), matrix.dtype, matrix.device].append((weight, matrix, length))
        with _ieee_products():
            for batch in by_side.values():
                factors = polar_factors([matrix for _, matrix, _ in batch])
                for (weight, matrix, length), factor in zip(batch, factors, strict=True):
                    left, right = (factor, matrix) if _is_wide(matrix) else (matrix, factor)
                    weight.addmm_(left, right, alpha=-length)

    def _step_adamw(self, parameters: Sequence[Tensor], group: dict[str, Any]) -> None:
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        states = [self.state[parameter] for parameter in parameters]
        adamw(
            list(parameters),
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True, amsgrad=False, beta1=_BETAS[0], beta2=_BETAS[1], lr=group["lr"],
            weight_decay=group["weight_decay"], eps=_EPS, maximize=False,
        )  # fmt: skip


def polar_factors(matrices: Sequence[Tensor]) -> Tensor:
    """Return the factors F that make matrices nearly orthogonal: F M for M (m, n) with m <= n, M F otherwise.

    Args:
        matrices: B of them, whose smaller sides are all s.

    Returns:
        (B, s, s), symmetric.
    """
    gram = torch.stack([matrix @ matrix.mT if _is_wide(matrix) else matrix.mT @ matrix for matrix in matrices])
    square_norm = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None].clamp_(min=_SMALLEST_NORM**2)
    r = gram.div_(square_norm)
    product = None
    for index, (a, b, c) in enumerate(COEFFICIENTS):
        p = torch.baddbmm(r, r, r, beta=b, alpha=c)
        p.diagonal(dim1=-2, dim2=-1).add_(a)
        product = p if product is None else p @ product
        if index < len(COEFFICIENTS) - 1:
            r = p @ r @ p
    assert product is not None
    return product.div_(square_norm.sqrt_())


def _as_matrices(parameter: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
    """Return parameter and update as matrices (out, rest), the parameter as a view.

    The order of the columns is that of the parameter in memory: another order gives U V^T in that order.
    """
    inner = sorted(range(1, parameter.ndim), key=parameter.stride, reverse=True)
    return parameter.permute(0, *inner).view(len(parameter), -1), update.permute(0, *inner).reshape(len(parameter), -1)


def _used_columns(matrix: Tensor) -> slice:
    """Return the range from the first to the last nonzero column, at least one; all columns on a GPU."""
    if matrix.device.type != "cpu":
        return slice(None)
    (used,) = torch.where(matrix.any(0))
    return slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(1)


def _is_wide(matrix: Tensor) -> bool:
    return matrix.shape[0] <= matrix.shape[1]


@contextmanager
def _ieee_products() -> Iterator[None]:
    """Compute float32 products on a GPU without TF32 while active."""
    backends: Any = torch.backends
    matmul, general = backends.cuda.matmul, backends.fp32_precision
    # Not the older `allow_tf32`: reading it raises if the caller has set this one. "none" reads as the general one.
    backends.fp32_precision = "none"
    before = matmul.fp32_precision
    backends.fp32_precision = general
    matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before
