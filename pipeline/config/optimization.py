"""Optimizers, schedules and batch schedules."""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import Budget, Duration, PositiveFloat, Section, UnitFraction

# Optimizers and their options; `optim/` builds them.


class _Momentum(Section):
    momentum: UnitFraction = 0.9
    nesterov: bool = False

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0; give one, or set nesterov: false")
        return self


class _Moments(Section):
    """`beta1` and `beta2` decay the first and second moment of the gradient."""

    beta1: UnitFraction = 0.9
    beta2: UnitFraction = 0.999
    eps: PositiveFloat = 1e-8


class SgdConfig(_Momentum):
    """Stochastic gradient descent with (Nesterov) momentum."""

    name: Literal["sgd"] = "sgd"


class LarsConfig(_Momentum):
    """Layer-wise adaptive rate scaling; the rate multiplies `trust_coefficient`, so it is a large one."""

    name: Literal["lars"]
    trust_coefficient: PositiveFloat = 0.001


class LambConfig(_Moments):
    """LAMB: Adam with a layer-wise trust ratio."""

    name: Literal["lamb"]
    eps: PositiveFloat = 1e-6


class RadamConfig(_Moments):
    """Rectified Adam with decoupled weight decay."""

    name: Literal["radam"]


class AdamwConfig(_Moments):
    """Adam with decoupled weight decay."""

    name: Literal["adamw"]


class MuonConfig(_Momentum):
    """Orthogonalized momentum for hidden weight matrices and filters, AdamW for the rest, at the same learning rate.

    The rest are vectors, the first convolution and the classifier, as Muon's authors advise.
    """

    name: Literal["muon"]
    momentum: UnitFraction = 0.95
    nesterov: bool = True


OptimizerConfig = Annotated[
    SgdConfig | LarsConfig | LambConfig | RadamConfig | AdamwConfig | MuonConfig, Field(discriminator="name")
]


# Learning-rate schedules and their options; `schedules/` computes them.


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
    initial_factor: UnitFraction = 0.1


ScheduleConfig = Annotated[
    ConstantSchedule | CosineSchedule | StepSchedule | PolynomialSchedule | OneCycleSchedule,
    Field(discriminator="name"),
]


# Batch sizes that grow in the course of a run.


UNITS = ("epochs", "steps", "examples")


class BatchStageConfig(Section):
    """A stage of smaller batches.

    Attributes:
        share: of the batch size that the run ends with. Each simulated worker gets that share of its images, so
            their BatchNorm groups are smaller too.
        until: when the next stage begins, counted from the first step of the run.
    """

    share: Annotated[float, Field(gt=0, lt=1)]
    until: Budget


class BatchSchedule(Section):
    """A batch that grows in stages up to the batch size of the run (Smith et al. 2018, Don't Decay the Learning Rate).

    Attributes:
        stages: in order, each with a larger share than the one before; the whole batch follows the last.
        lr_scaling: how the learning rate follows: times the share (`linear`), or its square root (`sqrt`). Null: not
            at all.
    """

    stages: Annotated[tuple[BatchStageConfig, ...], Field(min_length=1)]
    lr_scaling: Literal["linear", "sqrt"] | None = None

    @model_validator(mode="after")
    def _stages_ascend(self) -> Self:
        for number, (before, after) in enumerate(pairwise(self.stages), start=1):
            if after.share <= before.share:
                raise ValueError(
                    f"stages.{number}.share: {after.share:g} is no more than {before.share:g} of the stage before; "
                    "give shares in ascending order"
                )
            if overlap := order_conflict(after.until, before.until):
                raise ValueError(f"stages.{number}.until: {overlap} of the stage before; give a later end")
        return self

    def sizes(self, batch_size: int) -> tuple[int, ...]:
        """Images of a global batch in each stage.

        Raises:
            ValueError: a share of `batch_size` is no whole number of images.
        """
        return tuple(self._size(number, batch_size) for number in range(len(self.stages)))

    def _size(self, number: int, batch_size: int) -> int:
        share = self.stages[number].share
        size = round(share * batch_size)
        # A share such as 1/3 cannot be written exactly.
        if abs(size - share * batch_size) > 1e-6 * batch_size:
            raise ValueError(
                f"stages.{number}.share: {share:g} of batch {batch_size} is {share * batch_size:g} images; "
                "give a share that makes a whole number"
            )
        return size


def order_conflict(one: Duration, other: Duration) -> str:
    """`5 epochs is no later than 5 epochs`, if both are in one unit and it is so; else empty."""
    for unit in UNITS:
        mine, theirs = getattr(one, unit), getattr(other, unit)
        if mine is not None and theirs is not None and mine <= theirs:
            return f"{mine:g} {unit} is no later than {theirs:g} {unit}"
    return ""
