"""How a network is trained: the part that `finetune` and `train` share."""

from typing import Annotated, Literal, Self

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
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0; give one, or set nesterov: false")
        return self


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


Schedule = Annotated[ConstantSchedule | CosineSchedule | StepSchedule, Field(discriminator="name")]


class LrScaling(Section):
    """How the learning rate follows the batch size: lr x (batch / reference_batch_size) ** p."""

    rule: Literal["linear", "sqrt"]
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
    optimizer: SgdConfig = SgdConfig()
    schedule: Schedule = ConstantSchedule(name="constant")
    lr_scaling: LrScaling | None = None
    decay_norm_and_bias: bool = True
    label_smoothing: Share = 0.0
    augmentation: Augmentation = Augmentation()
    simulated_workers: Positive = 1
    workers: Positive | Literal["auto"] = "auto"
    threads_per_worker: Positive | Literal["auto"] = "auto"
    eval_batch_size: Positive = 500


class OptimizedRun(Recipe):
    """A recipe with its own batch size and rates: one network trained once."""

    batch_size: Positive
    learning_rate: PositiveFloat
    weight_decay: NonNegativeFloat = 0.0
    budget: Budget
