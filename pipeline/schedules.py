"""Learning-rate schedules: pure functions from the optimizer step to a factor of the peak rate.

Steps are counted in batches of the final size. If the batch size changes during a run, an optimizer step with half of
that size counts half, so that a schedule follows the number of images.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal


def constant(step: float, total_steps: float) -> float:
    """Return 1 at every step."""
    assert 0 <= step < total_steps
    return 1.0


def cosine(step: float, total_steps: float) -> float:
    """Return half a cosine, from 1 at step 0 to 0 at step `total_steps`.

    Loshchilov & Hutter 2017, SGDR, equation 5, without restarts.
    """
    assert 0 <= step < total_steps
    return 0.5 * (1.0 + math.cos(math.pi * step / total_steps))


def one_cycle(step: float, total_steps: float, *, rise: float, initial_factor: float) -> float:
    """Rise linearly from `initial_factor` to 1 over the fraction `rise` of the run, then fall linearly to 0.

    Smith & Topin 2018, Super-Convergence.
    """
    assert 0 <= step < total_steps
    peak = rise * total_steps
    if step < peak:
        return initial_factor + (1.0 - initial_factor) * step / peak
    return (total_steps - step) / (total_steps - peak)


def polynomial(step: float, total_steps: float, *, power: float) -> float:
    """Return polynomial decay from 1 at step 0 to 0 at step `total_steps`.

    You et al. 2017, section 5, with power 2.
    """
    assert 0 <= step < total_steps
    return float((1.0 - step / total_steps) ** power)


def step_decay(step: float, total_steps: float, *, milestones: Sequence[float], factor: float) -> float:
    """Multiply by `factor` at each of `milestones`, in steps."""
    assert 0 <= step < total_steps
    return factor ** sum(step >= milestone for milestone in milestones)


def apply_warmup(
    factor: float, step: float, warmup_steps: float, *, start_factor: float | None = None, length: float = 1.0
) -> float:
    """Scale `factor` up linearly over the first `warmup_steps` steps.

    Goyal et al. 2017, Accurate, Large Minibatch SGD, section 2.2.

    Args:
        step: steps done before this one, counted as in schedules.
        start_factor: fraction of `factor` at step 0; step `warmup_steps` is the first with the full factor, as in
            torch's LinearLR. None: step 0 has 1 / warmup_steps, and step warmup_steps - 1 is the first with the full
            factor.
        length: of this step; below 1 while its batch is smaller than the final one.
    """
    if not step < warmup_steps:
        return factor
    if start_factor is None:
        return factor * min(1.0, (step + length) / warmup_steps)
    return factor * (start_factor + (1.0 - start_factor) * step / warmup_steps)


ScalingRule = Literal["linear", "sqrt", "legw"]


def scaled_rate(
    learning_rate: float, batch_size: int, *, rule: ScalingRule | None, reference_batch_size: int = 1
) -> float:
    """Scale a learning rate stated for `reference_batch_size` to `batch_size`.

    Linear scaling keeps the expected update per image (Goyal et al. 2017). The square root keeps its variance
    (Krizhevsky 2014); LEGW uses it too (You et al. 2019).
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
    """Scale a warm-up in epochs to `batch_size`: in proportion to the batch for LEGW, unchanged for other rules.

    With LEGW the warm-up has the same number of optimizer steps at every batch size.
    """
    return epochs * batch_size / reference_batch_size if rule == "legw" else epochs


SCHEDULES: dict[str, Callable[..., float]] = {
    "constant": constant,
    "cosine": cosine,
    "one_cycle": one_cycle,
    "polynomial": polynomial,
    "step": step_decay,
}
"""Name in params.yaml -> schedule, which takes (step, total_steps, **options)."""

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
