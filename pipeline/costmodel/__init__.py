"""Seconds of a data-parallel training step, from a description of the machine and of the job: a simulator."""

from pipeline.costmodel.all_reduce import ALL_REDUCE, ring_seconds, tree_seconds
from pipeline.costmodel.fitting import Fit, Measurement, fit
from pipeline.costmodel.job import Job
from pipeline.costmodel.machine import Link, Machine, machine
from pipeline.costmodel.messages import Negotiation
from pipeline.costmodel.scaling import ScalingPoint, strong_scaling, weak_scaling
from pipeline.costmodel.step import Communication, Step, simulate_step

__all__ = [
    "ALL_REDUCE",
    "Communication",
    "Fit",
    "Job",
    "Link",
    "Machine",
    "Measurement",
    "Negotiation",
    "ScalingPoint",
    "Step",
    "fit",
    "machine",
    "ring_seconds",
    "simulate_step",
    "strong_scaling",
    "tree_seconds",
    "weak_scaling",
]
