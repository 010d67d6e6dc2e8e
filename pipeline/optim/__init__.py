"""Optimizers, behind one registry."""

from collections.abc import Callable

from torch.optim import Optimizer

from pipeline.optim.adamw import adamw
from pipeline.optim.groups import parameter_groups
from pipeline.optim.lamb import lamb
from pipeline.optim.lars import lars
from pipeline.optim.muon import muon
from pipeline.optim.radam import radam
from pipeline.optim.sgd import sgd

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": adamw,
    "lamb": lamb,
    "lars": lars,
    "muon": muon,
    "radam": radam,
    "sgd": sgd,
}
"""By the name used in params.yaml. Each takes (parameter groups, learning_rate, **its own options)."""

__all__ = ["OPTIMIZERS", "adamw", "lamb", "lars", "muon", "parameter_groups", "radam", "sgd"]
