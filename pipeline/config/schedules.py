"""Learning-rate schedules and their options; `schedules/` computes them."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.base import PositiveFloat, Section, Share
from pipeline.config.duration import Duration


class ConstantSchedule(Section):
    """The peak rate throughout, after the warm-up."""

    name: Literal["constant"]
    warmup: Duration = Duration(steps=0)


class CosineSchedule(Section):
    """Half a cosine from the peak to zero over the whole budget, after the warm-up."""

    name: Literal["cosine"]
    warmup: Duration = Duration(steps=0)


class StepSchedule(Section):
    """The rate is multiplied by `factor` at each of `milestones`, counted from the first step."""

    name: Literal["step"]
    warmup: Duration = Duration(steps=0)
    milestones: Annotated[tuple[Duration, ...], Field(min_length=1)]
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1


class PolynomialSchedule(Section):
    """(1 - step / steps) ** power over the whole budget."""

    name: Literal["polynomial"]
    warmup: Duration = Duration(steps=0)
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
