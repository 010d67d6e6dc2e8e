"""Simulator of data-parallel training: seconds of a step from a description of the machine and of the job."""

from pipeline.simulator.fitting import AllReduceTiming, LinkFit, fit
from pipeline.simulator.job import Job
from pipeline.simulator.machine import Machine, NetworkLink
from pipeline.simulator.model import (
    ALL_REDUCE,
    CommunicationModel,
    Negotiation,
    ScalingPoint,
    SimulatedStep,
    ring_seconds,
    simulate_step,
    strong_scaling,
    tree_seconds,
    weak_scaling,
)

__all__ = [
    "ALL_REDUCE",
    "AllReduceTiming",
    "CommunicationModel",
    "Job",
    "LinkFit",
    "Machine",
    "Negotiation",
    "NetworkLink",
    "ScalingPoint",
    "SimulatedStep",
    "fit",
    "ring_seconds",
    "simulate_step",
    "strong_scaling",
    "tree_seconds",
    "weak_scaling",
]
