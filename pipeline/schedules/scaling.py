"""How the peak learning rate and the warm-up follow the batch size."""

import math
from typing import Literal

Rule = Literal["linear", "sqrt", "legw"]


def scaled_rate(learning_rate: float, batch_size: int, *, rule: Rule | None, reference_batch_size: int = 1) -> float:
    """The rate at `batch_size` of a rate stated for `reference_batch_size`.

    Linear scaling keeps the expected update per image (Goyal et al. 2017); the square root keeps
    its variance (Krizhevsky 2014), and is LEGW's too (You et al. 2019).
    """
    ratio = batch_size / reference_batch_size
    match rule:
        case "linear":
            return learning_rate * ratio
        case "sqrt" | "legw":
            return learning_rate * math.sqrt(ratio)
        case None:
            return learning_rate


def scaled_warmup(epochs: float, batch_size: int, *, rule: Rule | None, reference_batch_size: int = 1) -> float:
    """Warm-up in epochs at `batch_size`: LEGW's grows in proportion to the batch, the others' stays.

    So LEGW warms up for the same number of optimizer steps at every batch size.
    """
    return epochs * batch_size / reference_batch_size if rule == "legw" else epochs
