"""How a network is trained: the part that `finetune` and `train` share."""

from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, model_validator

from pipeline.config.base import NonNegative, NonNegativeFloat, Positive, PositiveFloat, Section, Share
from pipeline.config.duration import Budget, Duration

Network = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]


class SgdConfig(Section):
    """Stochastic gradient descent with (Nesterov) momentum."""

    name: Literal["sgd"] = "sgd"
    momentum: Share = 0.9
    nesterov: bool = False

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        return _checked_nesterov(self)


class LarsConfig(Section):
    """Layer-wise adaptive rate scaling; the rate multiplies `trust_coefficient`, so it is a large one."""

    name: Literal["lars"]
    momentum: Share = 0.9
    nesterov: bool = False
    trust_coefficient: PositiveFloat = 0.001

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        return _checked_nesterov(self)


class LambConfig(Section):
    """LAMB; `beta1`, `beta2` decay the moments of the gradient."""

    name: Literal["lamb"]
    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: PositiveFloat = 1e-6


class RadamConfig(Section):
    """Rectified Adam with decoupled weight decay."""

    name: Literal["radam"]
    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: PositiveFloat = 1e-8


class AdamwConfig(Section):
    """Adam with decoupled weight decay."""

    name: Literal["adamw"]
    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: PositiveFloat = 1e-8


class MuonConfig(Section):
    """Orthogonalised momentum for weight matrices and filters, AdamW for the rest."""

    name: Literal["muon"]
    momentum: Share = 0.95
    nesterov: bool = True


Optimizer = Annotated[
    SgdConfig | LarsConfig | LambConfig | RadamConfig | AdamwConfig | MuonConfig, Field(discriminator="name")
]

_Section = TypeVar("_Section", SgdConfig, LarsConfig)


def _checked_nesterov(section: _Section) -> _Section:
    if section.nesterov and not section.momentum:
        raise ValueError("nesterov needs a momentum above 0; give one, or set nesterov: false")
    return section


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


class LrScaling(Section):
    """How the learning rate follows the batch size: lr x (batch / reference_batch_size) ** p.

    `linear` has p = 1, `sqrt` p = 1/2. `legw` has p = 1/2 too, and the warm-up, which must be given
    in epochs for the reference batch, grows in proportion to the batch (You et al. 2019,
    Large-Batch Training for LSTM and Beyond).
    """

    rule: Literal["linear", "sqrt", "legw"]
    reference_batch_size: Positive


class Augmentation(Section):
    """Random crop and flip.

    Attributes:
        crop_size: side of the crop in pixels; evaluation takes the centre crop. Null: image_size.
        crop_padding: zero pixels added on every side before the random crop.
        flip: mirror left to right with probability one half.
    """

    crop_size: Positive | None = None
    crop_padding: NonNegative = 0
    flip: bool = False


def _legw_has_epochs(recipe: "Recipe") -> None:
    if recipe.lr_scaling is None or recipe.lr_scaling.rule != "legw":
        return
    warmup = getattr(recipe.schedule, "warmup", None)
    if warmup is None or warmup.epochs is None:
        raise ValueError(
            "lr_scaling: legw grows a warm-up in epochs; give `schedule: {..., warmup: {epochs: <for the reference>}}`"
        )


class Recipe(Section):
    """Optimizer, schedule, regularisation and how the global batch is spread.

    Attributes:
        stem: `imagenet` (7x7 stride 2 and max-pooling) or `cifar` (3x3, no pooling).
        lr_scaling: null leaves the learning rate as written.
        decay_norm_and_bias: whether weight decay also acts on BatchNorm parameters and biases.
        simulated_workers: X; the job is one of X workers whatever it runs on. Each has BatchNorm
            statistics of its own over its batch/X images.
        workers: Y, the processes that do the work; must divide X. `auto`: the largest divisor of X
            that is not above the number of GPUs; 1 on a machine without.
        threads_per_worker: CPU threads of each process. `auto`: cores / workers.
        eval_batch_size: images per forward pass in evaluation; changes no result but memory.
    """

    stem: Literal["imagenet", "cifar"] = "imagenet"
    optimizer: Optimizer = SgdConfig()
    schedule: Schedule = ConstantSchedule(name="constant")
    lr_scaling: LrScaling | None = None
    decay_norm_and_bias: bool = True
    label_smoothing: Share = 0.0
    augmentation: Augmentation = Augmentation()
    simulated_workers: Positive = 1
    workers: Positive | Literal["auto"] = "auto"
    threads_per_worker: Positive | Literal["auto"] = "auto"
    eval_batch_size: Positive = 500

    @model_validator(mode="after")
    def _rules_fit_together(self) -> Self:
        _legw_has_epochs(self)
        return self


class OptimizedRun(Recipe):
    """A recipe with its own batch size and rates: one network trained once."""

    batch_size: Positive
    learning_rate: PositiveFloat
    weight_decay: NonNegativeFloat = 0.0
    budget: Budget
