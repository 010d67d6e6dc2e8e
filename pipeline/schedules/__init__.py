"""Learning-rate schedules: each a pure function from the optimizer step to a factor of the peak rate."""

from collections.abc import Callable

from pipeline.schedules.constant import constant
from pipeline.schedules.cosine import cosine
from pipeline.schedules.one_cycle import one_cycle
from pipeline.schedules.polynomial import polynomial
from pipeline.schedules.scaling import scaled_rate, scaled_warmup
from pipeline.schedules.step_decay import step_decay
from pipeline.schedules.warmup import warmed_up

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
    "constant",
    "cosine",
    "one_cycle",
    "polynomial",
    "scaled_rate",
    "scaled_warmup",
    "step_decay",
    "warmed_up",
]
