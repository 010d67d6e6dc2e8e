"""Times of training steps for the tests of diagnosis."""

import numpy as np

from pipeline.costmodel.bottleneck import StepTimes


def made_up_times(
    compute: float,
    *,
    input: float = 0.0,  # noqa: A002 - as the part is called
    slow_rank: float = 0.0,
    communication: float = 0.0,
    shape: tuple[int, int, int] = (8, 2, 5),
) -> StepTimes:
    """Steps without noise, of which the last rank takes longer by `slow_rank`."""
    synthetic = np.full(shape, compute)
    synthetic[:, -1] += slow_rank
    local = synthetic + input
    full = np.broadcast_to(local.max(axis=1, keepdims=True) + communication, shape).copy()
    return StepTimes(full=full, local=local, synthetic=synthetic)
