"""Optimizers, behind one registry."""

from collections.abc import Callable

from torch.optim import Optimizer

from pipeline.optim.muon import muon
from pipeline.optim.optimizers import adamw, lamb, lars, parameter_groups, radam, sgd

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": adamw,
    "lamb": lamb,
    "lars": lars,
    "muon": muon,
    "radam": radam,
    "sgd": sgd,
}
"""By the name used in params.yaml. Each takes (parameter groups, learning_rate, **its options)."""

__all__ = ["OPTIMIZERS", "adamw", "lamb", "lars", "muon", "parameter_groups", "radam", "sgd"]
