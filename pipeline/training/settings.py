"""The effective settings of a training run: everything that decides its result, resolved from a recipe."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pipeline.batching import Reduction, valid_world_sizes
from pipeline.config.base import Duration
from pipeline.config.recipe import Recipe
from pipeline.distributed import CommConfig, CompressionKind, LaunchPlan
from pipeline.durations import BatchSizes, BatchStage, to_steps
from pipeline.errors import InputError
from pipeline.schedules import SCHEDULES, apply_warmup, scaled_rate, scaled_warmup
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

    Keys of a recipe that decide only how the run is executed (workers, their threads with `ddp`, micro_batch, comm,
    checkpoint, eval_batch_size) are not here: they change a result by rounding at most, and retrain nothing.

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


def effective_settings(
    recipe: Recipe,
    dataset: DatasetInfo,
    point: GridPoint,
    *,
    n_epoch: int,
    budget: Duration,
    accuracy_every: Duration | None = None,
    skipped: bool = False,
) -> TrainSettings:
    """Resolve a recipe for one point of a grid.

    Args:
        n_epoch: images that count as one epoch wherever a duration is given in epochs.
        accuracy_every: see `Study`.
        skipped: the run is only listed, so its warm-up need not fit the budget, and it has no batch schedule.

    Raises:
        InputError: the crop is larger than the stored images, the warm-up or the batch schedule longer than the
            budget, or a stage of the batch schedule shorter than a step.
    """
    batch_size, learning_rate = point.batch_size, point.learning_rate
    batch_sizes = BatchSizes(final=batch_size, stages=() if skipped else _batch_stages(recipe, batch_size, n_epoch))
    in_steps = partial(_in_steps, n_train=n_epoch, batch_sizes=batch_sizes)
    steps, warmup_steps = max(1, in_steps(budget)), in_steps(_warmup(recipe, batch_size))
    if not skipped:
        _check_batch_stages(batch_sizes, steps)
        _check_warmup(warmup_steps, steps, batch_size)
    peak_rate = _peak_rate(recipe, learning_rate, batch_size)
    local = recipe.post_local_sgd
    return TrainSettings(
        network=point.network,
        stem=recipe.stem,
        n_classes=dataset.n_classes,
        format=_format(recipe, dataset),
        crop_padding=recipe.augmentation.crop_padding,
        crop_area=recipe.augmentation.crop_area or DEFAULT_CROP_AREA,
        flip=recipe.augmentation.flip,
        batch_size=batch_size,
        batch_stages=batch_sizes.stages,
        batch_lr_scaling=recipe.batch_schedule.lr_scaling if recipe.batch_schedule else None,
        simulated_workers=recipe.simulated_workers,
        bn_group=recipe.bn_group,
        reduction=recipe.reduction,
        threads=recipe.pinned_threads,
        precision=recipe.precision,
        compile=recipe.compile,
        fast=bool(recipe.fast),
        steps=steps,
        optimizer=recipe.optimizer.name,
        optimizer_options=recipe.optimizer.model_dump(exclude={"name"}),
        learning_rate=peak_rate,
        weight_decay=point.weight_decay,
        decay_norm_and_bias=recipe.decay_norm_and_bias,
        schedule=recipe.schedule.name,
        schedule_options=_schedule_options(recipe, in_steps, batch_sizes),
        warmup_steps=warmup_steps,
        warmup_start_factor=_warmup_start_factor(recipe, learning_rate / peak_rate),
        label_smoothing=recipe.label_smoothing,
        clip_norm=recipe.clip_norm,
        ema_decay=recipe.ema_decay,
        local_from_step=in_steps(local.start) if local else None,
        local_period=local.period if local else 1,
        compression=recipe.communication.compression,
        powersgd_rank=recipe.communication.powersgd_rank,
        workers_per_node=recipe.communication.workers_per_node,
        noise_scale_steps=recipe.noise_scale_steps,
        **_accuracy_every(accuracy_every, in_steps, n_epoch, batch_sizes),
        seed=point.seed,
    )


def _batch_stages(recipe: Recipe, batch_size: int, n_epoch: int) -> tuple[BatchStage, ...]:
    if recipe.batch_schedule is None:
        return ()
    stages: tuple[BatchStage, ...] = ()
    sizes = recipe.batch_schedule.sizes(batch_size)
    for number, (stage, size) in enumerate(zip(recipe.batch_schedule.stages, sizes, strict=True)):
        begin = stages[-1].until_step if stages else 0
        until = _in_steps(stage.until, n_train=n_epoch, batch_sizes=BatchSizes(final=size, stages=stages))
        if until <= begin:
            raise InputError(
                f"batch_schedule.stages.{number}.until: at batch {batch_size} the stage would begin after step {begin} "
                f"and end after step {until}; give a later end, or remove the stage"
            )
        stages = (*stages, BatchStage(batch_size=size, until_step=until))
    return stages


def _check_batch_stages(batch_sizes: BatchSizes, steps: int) -> None:
    if batch_sizes.stages and batch_sizes.stages[-1].until_step >= steps:
        raise InputError(
            f"batch_schedule: its last stage ends after step {batch_sizes.stages[-1].until_step} at batch "
            f"{batch_sizes.final}, but the budget is {steps} steps, so no step has the full batch; shorten the "
            "stages or lengthen the budget"
        )


def _accuracy_every(
    period: Duration | None, in_steps: Callable[[Duration], int], n_epoch: int, batch_sizes: BatchSizes
) -> dict[str, int]:
    """Convert the evaluation period to steps; to examples if the steps differ in batch size."""
    if period is None:
        return {}
    if period.steps is not None or not batch_sizes.stages:
        return {"accuracy_steps": max(1, in_steps(period))}
    examples = period.examples if period.examples is not None else (period.epochs or 0.0) * n_epoch
    return {"accuracy_examples": max(1, math.ceil(round(examples, 9)))}


def _in_steps(duration: Duration, *, n_train: int, batch_sizes: BatchSizes) -> int:
    return to_steps(
        epochs=duration.epochs,
        steps=duration.steps,
        examples=duration.examples,
        n_train=n_train,
        batch_sizes=batch_sizes,
    )


def _format(recipe: Recipe, dataset: DatasetInfo) -> ImageFormat:
    image_size = dataset.image_size
    crop_size = recipe.augmentation.crop_size or image_size
    if crop_size > image_size:
        raise InputError(
            f"augmentation.crop_size: {crop_size} is larger than the prepared images of {image_size} pixels; "
            "give less, or run `dvc repro` to prepare larger ones"
        )
    return ImageFormat(image_size=image_size, crop_size=crop_size, mean=dataset.mean, std=dataset.std)


def _peak_rate(recipe: Recipe, learning_rate: float, batch_size: int) -> float:
    if recipe.lr_scaling is None:
        return learning_rate
    rule, reference = recipe.lr_scaling.rule, recipe.lr_scaling.reference_batch_size
    return scaled_rate(learning_rate, batch_size, rule=rule, reference_batch_size=reference)


def _warmup(recipe: Recipe, batch_size: int) -> Duration:
    if recipe.schedule.name == "one_cycle":
        return Duration(steps=0)
    warmup = recipe.schedule.warmup
    if warmup.epochs is None or recipe.lr_scaling is None:
        return warmup
    rule, reference = recipe.lr_scaling.rule, recipe.lr_scaling.reference_batch_size
    return Duration(epochs=scaled_warmup(warmup.epochs, batch_size, rule=rule, reference_batch_size=reference))


def _check_warmup(warmup_steps: int, steps: int, batch_size: int) -> None:
    if warmup_steps > steps:
        raise InputError(
            f"schedule.warmup: {warmup_steps} steps at batch {batch_size}, but the budget is {steps} steps; "
            "shorten the warm-up or lengthen the budget"
        )


def _warmup_start_factor(recipe: Recipe, reference_factor: float) -> float | None:
    """Return the start of the warm-up over the peak rate; `reference_factor` is the rate as written over that peak."""
    if recipe.schedule.name == "one_cycle":
        return None
    start = recipe.schedule.warmup_start_factor
    return min(1.0, reference_factor) if start == "reference" else start


def _schedule_options(recipe: Recipe, in_steps: Callable[[Duration], int], batch_sizes: BatchSizes) -> dict[str, Any]:
    options = recipe.schedule.model_dump(exclude={"name", "warmup", "warmup_start_factor"})
    if recipe.schedule.name == "step":
        # Schedules count steps in batches of the final size.
        marks = [in_steps(milestone) for milestone in recipe.schedule.milestones]
        options["milestones"] = [
            batch_sizes.examples(mark) / batch_sizes.final if batch_sizes.stages else mark for mark in marks
        ]
    return options


def launch_plan(recipe: Recipe) -> LaunchPlan:
    """Return the processes that a recipe requests, and those that its simulated workers allow."""
    simulated, threads = recipe.simulated_workers, recipe.pinned_threads or recipe.threads_per_worker
    lost_after = recipe.timeout_seconds
    # Each worker has separate weights or compression state, so no process can simulate two.
    if recipe.post_local_sgd is not None or recipe.communication.compression != "none":
        return LaunchPlan(workers=simulated, valid_world_sizes=[simulated], threads=threads, timeout_seconds=lost_after)
    valid_sizes = valid_world_sizes(simulated, recipe.reduction)
    return LaunchPlan(
        workers=recipe.workers, valid_world_sizes=valid_sizes, threads=threads, timeout_seconds=lost_after
    )


def comm_config_from(recipe: Recipe) -> CommConfig:
    """Return the recipe's communication options that decide no result."""
    communication = recipe.communication
    return CommConfig(
        library=communication.library, bucket_mib=communication.bucket_mib, overlap=communication.overlap,
        hierarchical=communication.hierarchical, timeout_seconds=recipe.timeout_seconds,
    )  # fmt: skip
