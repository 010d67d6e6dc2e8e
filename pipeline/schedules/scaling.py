"""How the peak learning rate follows the batch size."""

import math
from typing import Literal


def scaled_rate(
    learning_rate: float, batch_size: int, *, rule: Literal["linear", "sqrt"] | None, reference_batch_size: int = 1
) -> float:
    """The rate at `batch_size` of a rate stated for `reference_batch_size`.

    Linear scaling keeps the expected update per image (Goyal et al. 2017); the square root keeps
    its variance (Krizhevsky 2014).
    """
    ratio = batch_size / reference_batch_size
    return learning_rate * {"linear": ratio, "sqrt": math.sqrt(ratio), None: 1.0}[rule]
