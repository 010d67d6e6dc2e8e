"""Optimizers, behind one registry."""

from collections.abc import Callable

from torch.optim import Optimizer

from pipeline.optim.muon import Muon
from pipeline.optim.optimizers import adamw, lamb, lars, parameter_groups, radam, sgd

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": adamw,
    "lamb": lamb,
    "lars": lars,
    "muon": Muon,
    "radam": radam,
    "sgd": sgd,
}
"""By the name used in params.yaml. Each takes (parameter groups, learning_rate, **its options)."""

__all__ = ["OPTIMIZERS", "adamw", "lamb", "lars", "parameter_groups", "radam", "sgd"]
