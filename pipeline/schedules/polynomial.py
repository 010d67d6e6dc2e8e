"""Polynomial decay (You et al. 2017, section 5, with power 2)."""


def polynomial(step: float, total_steps: float, *, power: float) -> float:
    """From 1 at step 0 towards 0, which the step after the last would have."""
    assert 0 <= step < total_steps
    return float((1.0 - step / total_steps) ** power)
