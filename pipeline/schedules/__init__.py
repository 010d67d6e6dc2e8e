"""Learning-rate schedules: each a pure function from the optimizer step to a factor of the peak rate."""

from collections.abc import Callable

from pipeline.schedules.constant import constant
from pipeline.schedules.cosine import cosine
from pipeline.schedules.scaling import scaled_rate
from pipeline.schedules.step_decay import step_decay
from pipeline.schedules.warmup import warmed_up

SCHEDULES: dict[str, Callable[..., float]] = {"constant": constant, "cosine": cosine, "step": step_decay}
"""By the name used in params.yaml. Each takes (step, total_steps, **its own options)."""

__all__ = ["SCHEDULES", "constant", "cosine", "scaled_rate", "step_decay", "warmed_up"]
