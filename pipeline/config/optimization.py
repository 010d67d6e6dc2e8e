"""Sections of optimizers, learning-rate schedules and batch schedules."""

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.base import Budget, Duration, PositiveFloat, Section, UnitFraction


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


# The optimizers, which `pipeline.optim` builds.


class SgdConfig(_Momentum):
    """Stochastic gradient descent with (Nesterov) momentum."""

    name: Literal["sgd"] = "sgd"


class LarsConfig(_Momentum):
    """LARS: layer-wise adaptive rate scaling; the rate is multiplied by `trust_coefficient`, so choose a large one."""

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
    """Muon: orthogonalized momentum for hidden weight matrices and filters, AdamW for the rest, at one learning rate.

    The rest are vectors, the first convolution and the classifier, as Muon's authors advise.
    """

    name: Literal["muon"]
    momentum: UnitFraction = 0.95
    nesterov: bool = True


OptimizerConfig = Annotated[
    SgdConfig | LarsConfig | LambConfig | RadamConfig | AdamwConfig | MuonConfig, Field(discriminator="name")
]


# The learning-rate schedules, which `pipeline.schedules` computes.


WarmupStart = Annotated[
    Annotated[float, Field(gt=0, le=1)] | Literal["reference"] | None,
    Field(
        description="Fraction of the peak rate at the first step of the warm-up, as start_factor of torch's LinearLR; "
        "the first step after the warm-up is at the peak. `reference`: start at the learning rate as written, that of "
        "lr_scaling.reference_batch_size; a batch that is no larger has no warm-up. Null: start at the peak / steps "
        "of the warm-up, and reach the peak at its last step. Without a warm-up it has no effect."
    ),
]
"""Start of a warm-up; Goyal et al. 2017 (Accurate, Large Minibatch SGD, section 2.2) start at `reference`."""


class ConstantSchedule(Section):
    """The peak rate after the warm-up."""

    name: Literal["constant"]
    warmup: Duration = Duration(steps=0)
    warmup_start_factor: WarmupStart = None


class CosineSchedule(Section):
    """Half a cosine period from the peak to zero over the budget, including the warm-up."""

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
    """The peak times (1 - step / steps) ** power over the budget, including the warm-up."""

    name: Literal["polynomial"]
    warmup: Duration = Duration(steps=0)
    warmup_start_factor: WarmupStart = None
    power: PositiveFloat = 2.0


class OneCycleSchedule(Section):
    """Linear from `initial_factor` of the peak to the peak in the fraction `rise` of the budget, then linear to zero.

    It has no `warmup`, since the rise is a warm-up.
    """

    name: Literal["one_cycle"]
    rise: Annotated[float, Field(gt=0, lt=1)] = 0.3
    initial_factor: UnitFraction = 0.1


ScheduleConfig = Annotated[
    ConstantSchedule | CosineSchedule | StepSchedule | PolynomialSchedule | OneCycleSchedule,
    Field(discriminator="name"),
]


# Batch sizes that grow during a run.


UNITS = ("epochs", "steps", "examples")


class BatchStageConfig(Section):
    """A stage of smaller batches.

    Attributes:
        share: fraction of the final batch size. Each simulated worker gets that fraction of its images, so the
            BatchNorm groups are smaller too.
        until: start of the next stage, counted from the first step of the run.
    """

    share: Annotated[float, Field(gt=0, lt=1)]
    until: Budget


class BatchSchedule(Section):
    """A batch that grows in stages up to the batch size of the run (Smith et al. 2018, Don't Decay the Learning Rate).

    Attributes:
        stages: in ascending order of their shares; the full batch follows the last stage.
        lr_scaling: factor of the learning rate in a stage: the share (`linear`), or its square root (`sqrt`). Null: 1.
    """

    stages: Annotated[tuple[BatchStageConfig, ...], Field(min_length=1)]
    lr_scaling: Literal["linear", "sqrt"] | None = None

    @model_validator(mode="after")
    def _stages_ascend(self) -> Self:
        for number, (before, after) in enumerate(pairwise(self.stages), start=1):
            if after.share <= before.share:
                raise ValueError(
                    f"stages.{number}.share: {after.share:g} is not above {before.share:g} of the previous stage; "
                    "give shares in ascending order"
                )
            if overlap := order_conflict(after.until, before.until):
                raise ValueError(f"stages.{number}.until: {overlap} of the previous stage; give a later end")
        return self

    def sizes(self, batch_size: int) -> tuple[int, ...]:
        """Return the images of a global batch in each stage.

        Raises:
            ValueError: a share of `batch_size` is not an integer number of images.
        """
        return tuple(self._size(number, batch_size) for number in range(len(self.stages)))

    def _size(self, number: int, batch_size: int) -> int:
        share = self.stages[number].share
        size = round(share * batch_size)
        # A share such as 1/3 cannot be written exactly.
        if abs(size - share * batch_size) > 1e-6 * batch_size:
            raise ValueError(
                f"stages.{number}.share: {share:g} of batch {batch_size} is {share * batch_size:g} images; "
                "give a share that makes an integer"
            )
        return size


def order_conflict(later: Duration, earlier: Duration) -> str:
    """Return `5 epochs is not after 5 epochs` if both durations have one unit and are not in order; else empty."""
    for unit in UNITS:
        after, before = getattr(later, unit), getattr(earlier, unit)
        if after is not None and before is not None and after <= before:
            return f"{after:g} {unit} is not after {before:g} {unit}"
    return ""
