"""Learning-rate schedules and their options; `schedules/` computes them."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.base import PositiveFloat, Section, Share
from pipeline.config.duration import Duration

WarmupStart = Annotated[
    Annotated[float, Field(gt=0, le=1)] | Literal["reference"] | None,
    Field(
        description="Share of the peak rate at the first step of the warm-up, as start_factor of torch's LinearLR; "
        "the step after the warm-up is then the first at the peak. `reference`: the rate of "
        "lr_scaling.reference_batch_size, which is the learning rate as written; at a batch no larger than that one "
        "there is no warm-up. Null: the peak / steps of the warm-up, and its last step is at the peak. Without a "
        "warm-up it has no effect."
    ),
]
"""Where a warm-up starts; Goyal et al. 2017 (Accurate, Large Minibatch SGD, section 2.2) start it at `reference`."""


class ConstantSchedule(Section):
    """The peak rate throughout, after the warm-up."""

    name: Literal["constant"]
    warmup: Duration = Duration(steps=0)
    warmup_start_factor: WarmupStart = None


class CosineSchedule(Section):
    """Half a cosine from the peak to zero over the whole budget, after the warm-up."""

    name: Literal["cosine"]
    warmup: Duration = Duration(steps=0)
    warmup_start_factor: WarmupStart = None


class StepSchedule(Section):
    """The rate is multiplied by `factor` at each of `milestones`, counted from the first step."""

    name: Literal["step"]
    warmup: Duration = Duration(steps=0)
    warmup_start_factor: WarmupStart = None
    milestones: Annotated[tuple[Duration, ...], Field(min_length=1)]
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1


class PolynomialSchedule(Section):
    """(1 - step / steps) ** power over the whole budget."""

    name: Literal["polynomial"]
    warmup: Duration = Duration(steps=0)
    warmup_start_factor: WarmupStart = None
    power: PositiveFloat = 2.0


class OneCycleSchedule(Section):
    """Straight up from `initial_factor` of the peak during the share `rise` of the budget, then down to zero.

    It has no `warmup`: the rise is one.
    """

    name: Literal["one_cycle"]
    rise: Annotated[float, Field(gt=0, lt=1)] = 0.3
    initial_factor: Share = 0.1


Schedule = Annotated[
    ConstantSchedule | CosineSchedule | StepSchedule | PolynomialSchedule | OneCycleSchedule,
    Field(discriminator="name"),
]
