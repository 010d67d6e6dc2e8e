"""Learning-rate schedules: pure functions of the step."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

# No change over time.


def constant(step: float, total_steps: float) -> float:
    """1 at every step."""
    assert 0 <= step < total_steps
    return 1.0


# Half a cosine (Loshchilov & Hutter 2017, SGDR, equation 5, without restarts).


def cosine(step: float, total_steps: float) -> float:
    """From 1 at step 0 towards 0, which the step after the last would have."""
    assert 0 <= step < total_steps
    return 0.5 * (1.0 + math.cos(math.pi * step / total_steps))


# One cycle (Smith & Topin 2018, Super-Convergence): up and down again in straight lines.


def one_cycle(step: float, total_steps: float, *, rise: float, initial_factor: float) -> float:
    """`initial_factor` at step 0, 1 after the share `rise` of the run, then down towards 0 at its end."""
    assert 0 <= step < total_steps
    peak = rise * total_steps
    if step < peak:
        return initial_factor + (1.0 - initial_factor) * step / peak
    return (total_steps - step) / (total_steps - peak)


# Polynomial decay (You et al. 2017, section 5, with power 2).


def polynomial(step: float, total_steps: float, *, power: float) -> float:
    """From 1 at step 0 towards 0, which the step after the last would have."""
    assert 0 <= step < total_steps
    return float((1.0 - step / total_steps) ** power)


# Drops at given steps.


def step_decay(step: float, total_steps: float, *, milestones: Sequence[float], factor: float) -> float:
    """`factor` to the power of how many of `milestones` (in steps) lie at or before `step`."""
    assert 0 <= step < total_steps
    return factor ** sum(step >= milestone for milestone in milestones)


# Gradual warm-up (Goyal et al. 2017, Accurate, Large Minibatch SGD, section 2.2).


def apply_warmup(
    factor: float, step: float, warmup_steps: float, *, start_factor: float | None = None, length: float = 1.0
) -> float:
    """`factor`, brought in linearly.

    Args:
        step: done before this one, counted as schedules do.
        start_factor: share of `factor` at step 0; step `warmup_steps` is the first to have all of it, as in torch's
            LinearLR. None: step 0 has 1 / warmup_steps, and step warmup_steps - 1 is the first to have all.
        length: of this step; below 1 while its batch is smaller than the final one.
    """
    if not step < warmup_steps:
        return factor
    if start_factor is None:
        return factor * min(1.0, (step + length) / warmup_steps)
    return factor * (start_factor + (1.0 - start_factor) * step / warmup_steps)


# How the peak learning rate and the warm-up follow the batch size.


ScalingRule = Literal["linear", "sqrt", "legw"]


def scaled_rate(
    learning_rate: float, batch_size: int, *, rule: ScalingRule | None, reference_batch_size: int = 1
) -> float:
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


def scaled_warmup(epochs: float, batch_size: int, *, rule: ScalingRule | None, reference_batch_size: int = 1) -> float:
    """Warm-up in epochs at `batch_size`: LEGW's grows in proportion to the batch, the others' stays.

    So LEGW warms up for the same number of optimizer steps at every batch size.
    """
    return epochs * batch_size / reference_batch_size if rule == "legw" else epochs


# Learning-rate schedules: each a pure function from the optimizer step to a factor of the peak rate.


SCHEDULES: dict[str, Callable[..., float]] = {
    "constant": constant,
    "cosine": cosine,
    "one_cycle": one_cycle,
    "polynomial": polynomial,
    "step": step_decay,
}
"""By the name used in params.yaml. Each takes (step, total_steps, **its own options).

Steps are counted in batches of the final size: where the batch size changes on the way, an optimizer step of half of it
counts half, so that a schedule goes by images.
"""

__all__ = [
    "SCHEDULES",
    "apply_warmup",
    "constant",
    "cosine",
    "one_cycle",
    "polynomial",
    "scaled_rate",
    "scaled_warmup",
    "step_decay",
]
