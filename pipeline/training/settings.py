"""The effective settings of a training run: everything that decides its result, resolved from a recipe."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.batching import Reduction
from pipeline.distributed import CompressionKind
from pipeline.durations import BatchSizes, BatchStage
from pipeline.schedules import SCHEDULES, apply_warmup, scaled_rate
from pipeline.training.numerics import Precision

DEFAULT_CROP_AREA = 0.08
"""Smallest fraction of an image in a random-resized crop, as usual in ImageNet training."""


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """The image format that a network reads.

    Attributes:
        image_size: side of the stored images in pixels.
        crop_size: side of the crop that enters the network.
        mean, std: per channel, in units of 0 to 1.
    """

    image_size: int
    crop_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The settings of one run. Durations are in optimizer steps, and the learning rate is the peak, after scaling.

    Keys of a recipe that decide only how the run is executed (workers, micro_batch, comm, checkpoint, eval_batch_size)
    are not here: they change a result by rounding at most, and retrain nothing. The threads of a process are in the key
    of a run on a CPU, see `run_key`.

    Attributes:
        batch_size: images of a global batch after the last of `batch_stages`.
        batch_stages: earlier stages of smaller batches.
        batch_lr_scaling: how the learning rate follows the batch size of a stage; None: it does not.
        warmup_start_factor: see `schedules.apply_warmup`.
        local_from_step: first step from which workers take local steps and average their weights every
            `local_period` steps (post-local SGD); None: never.
        compression: of gradients.
        powersgd_rank: required with `powersgd`, None otherwise.
        workers_per_node: nodes of this many workers compress the mean of their gradients; None: each worker compresses.
        accuracy_steps: steps between two evaluations on the test images.
        accuracy_examples: training images between two evaluations, each at the step that completes them. With neither,
            evaluate only after the last step.
        threads: CPU threads of a process, if the settings guarantee the bits of the result.
    """

    network: str
    stem: Literal["imagenet", "cifar"]
    n_classes: int
    format: ImageFormat
    crop_padding: int
    crop_area: float = DEFAULT_CROP_AREA
    flip: bool
    batch_size: int
    batch_stages: tuple[BatchStage, ...] = ()
    batch_lr_scaling: Literal["linear", "sqrt"] | None = None
    simulated_workers: int
    bn_group: int | None = None
    reduction: Reduction = "ddp"
    threads: int | None = None
    precision: Precision = "fp32"
    compile: bool | Literal["cuda_graphs"] = False
    fast: bool = False
    steps: int
    optimizer: str
    optimizer_options: Mapping[str, Any]
    learning_rate: float
    weight_decay: float
    decay_norm_and_bias: bool
    schedule: str
    schedule_options: Mapping[str, Any]
    warmup_steps: int
    warmup_start_factor: float | None = None
    label_smoothing: float
    clip_norm: float | None = None
    ema_decay: float | None = None
    local_from_step: int | None = None
    local_period: int = 1
    compression: CompressionKind = "none"
    powersgd_rank: int | None = None
    workers_per_node: int | None = None
    noise_scale_steps: int | None = None
    accuracy_steps: int | None = None
    accuracy_examples: int | None = None
    seed: int

    @property
    def batch_sizes(self) -> BatchSizes:
        return BatchSizes(final=self.batch_size, stages=self.batch_stages)

    def lr_at(self, step: int) -> float:
        """Return the learning rate of optimizer step `step`, counted from 0."""
        size = self.batch_sizes.size_at(step)
        before, total, warmup = (
            self.batch_sizes.examples(steps) / self.batch_size for steps in (step, self.steps, self.warmup_steps)
        )
        factor = apply_warmup(
            SCHEDULES[self.schedule](before, total, **self.schedule_options), before, warmup,
            start_factor=self.warmup_start_factor, length=size / self.batch_size,
        )  # fmt: skip
        rule, reference = self.batch_lr_scaling, self.batch_size
        peak = scaled_rate(self.learning_rate, size, rule=rule, reference_batch_size=reference)
        return peak * factor

    def evaluates_after(self, steps: int) -> bool:
        """Return whether to evaluate after the first `steps` steps; False after the last, which is always evaluated."""
        if steps >= self.steps:
            return False
        if self.accuracy_examples is not None:
            before, after = (self.batch_sizes.examples(count) // self.accuracy_examples for count in (steps - 1, steps))
            return after > before
        return self.accuracy_steps is not None and steps % self.accuracy_steps == 0


NEWER: Mapping[str, Any] = {"fast": False}
"""Settings that earlier versions lacked -> the value at which a run behaves as in those versions."""


def recorded_settings(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings of a run by name, as plain values for its key and its row in a table.

    A setting of `NEWER` is left out if it has the value given there, so that keys and tables of earlier versions stay
    the same.
    """
    values = dataclasses.asdict(settings)
    return {name: value for name, value in values.items() if name not in NEWER or value != NEWER[name]}


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """The properties of a prepared data set that settings depend on.

    Attributes:
        image_size: side of the images in pixels.
        mean, std: per channel, in units of 0 to 1.
    """

    n_classes: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class GridPoint:
    """One point of a grid; `learning_rate` is before scaling."""

    network: str
    batch_size: int
    learning_rate: float
    weight_decay: float
    seed: int
