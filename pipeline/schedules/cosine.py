"""Half a cosine (Loshchilov & Hutter 2017, SGDR, equation 5, without restarts)."""

import math


def cosine(step: float, total_steps: float) -> float:
    """From 1 at step 0 towards 0, which the step after the last would have."""
    assert 0 <= step < total_steps
    return 0.5 * (1.0 + math.cos(math.pi * step / total_steps))
