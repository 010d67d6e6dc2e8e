"""Drops at given steps."""

from collections.abc import Sequence


def step_decay(step: float, total_steps: float, *, milestones: Sequence[float], factor: float) -> float:
    """`factor` to the power of how many of `milestones` (in steps) lie at or before `step`."""
    assert 0 <= step < total_steps
    return factor ** sum(step >= milestone for milestone in milestones)
