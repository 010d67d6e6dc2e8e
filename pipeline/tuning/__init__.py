"""Choosing among trials: early elimination, successive halving and Hyperband, as pure rules."""

from pipeline.tuning.elimination import Outcome, Tolerance, eliminate, lockstep, remaining, sequential
from pipeline.tuning.halving import Rung, epochs_of, hyperband, promoted, successive_halving

__all__ = [
    "Outcome",
    "Rung",
    "Tolerance",
    "eliminate",
    "epochs_of",
    "hyperband",
    "lockstep",
    "promoted",
    "remaining",
    "sequential",
    "successive_halving",
]
