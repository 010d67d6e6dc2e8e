"""Resolve a recipe and a point of a grid into the settings of a run, in optimizer steps."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from pipeline.batching import valid_world_sizes
from pipeline.config.base import Duration
from pipeline.config.recipe import Recipe
from pipeline.distributed import CommConfig, LaunchPlan
from pipeline.durations import BatchSizes, BatchStage, to_steps
from pipeline.errors import InputError
from pipeline.schedules import scaled_rate, scaled_warmup
from pipeline.training.settings import DEFAULT_CROP_AREA, DatasetInfo, GridPoint, ImageFormat, TrainSettings


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
        skipped: the run is only listed, so its warm-up and the start of its local steps need not fit the budget, and
            it has no batch schedule.

    Raises:
        InputError: the crop is larger than the stored images; the warm-up, the steps before local ones or the batch
            schedule are longer than the budget; or a stage of the batch schedule is shorter than a step.
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
    local_from_step = in_steps(local.start) if local else None
    if not skipped and local_from_step is not None:
        _check_local_steps(local_from_step, steps, batch_size)
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
        local_from_step=local_from_step,
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


def _check_local_steps(local_from_step: int, steps: int, batch_size: int) -> None:
    if local_from_step >= steps:
        raise InputError(
            f"post_local_sgd.start: after step {local_from_step} at batch {batch_size}, but the budget is {steps} "
            "steps, so no worker takes a local step; give an earlier start or lengthen the budget"
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
