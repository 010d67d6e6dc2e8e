"""Optimizers, behind one registry."""

from collections.abc import Callable

from torch.optim import Optimizer

from pipeline.optim.groups import parameter_groups
from pipeline.optim.sgd import sgd

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"sgd": sgd}
"""By the name used in params.yaml. Each takes (parameter groups, learning_rate, **its own options)."""

__all__ = ["OPTIMIZERS", "parameter_groups", "sgd"]
