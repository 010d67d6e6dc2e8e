"""Execute one run: train, evaluate and save it."""

import dataclasses
import math
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.artifacts.prepared import ImageFiles, ImageSource
from pipeline.datasets.sources import TrainingImages
from pipeline.distributed import World
from pipeline.models.network import Network
from pipeline.run_log import RunLog
from pipeline.runs.arm_rows import TrainRows
from pipeline.runs.grid import RunSpec
from pipeline.runs.ledger import RunResult
from pipeline.training.evaluation import Evaluation, evaluate, load_images
from pipeline.training.loop import TrainData, train
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import TrainSettings
from pipeline.training.weights import Resizing, save_trained


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedSplits:
    """Images of both splits, uint8 (N, H, W, 3) or files, and the test labels, int64 (N_test,)."""

    train_images: ImageSource
    test_images: ImageSource
    test_labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    # By `training`: the format and augmentation of the loaded images, and the images.
    _loaded: dict[bool, tuple[tuple[object, ...], TrainingImages]] = dataclasses.field(default_factory=dict, init=False)

    def on_device(self, settings: TrainSettings, *, training: bool, device: torch.device) -> TrainingImages:
        """Return a split's images; consecutive runs with equal format and augmentation share them.

        Each split is in memory in one format at a time, so that what fits does not depend on earlier runs.
        """
        augmentation = (settings.crop_padding, settings.crop_area, settings.flip) if training else ()
        key = (settings.format, device, *augmentation)
        if training not in self._loaded or self._loaded[training][0] != key:
            # Released before loading the next: both may not fit.
            self._loaded.pop(training, None)
            source = self.train_images if training else self.test_images
            self._loaded[training] = key, load_images(source, settings, training=training, device=device)
        return self._loaded[training][1].with_seed(settings.seed)

    def for_training(self, settings: TrainSettings, *, device: torch.device) -> TrainingImages:
        """Return the training images, with the test images on the device too.

        A run that chooses its micro-batch by the memory then chooses the same whether or not earlier runs evaluated.
        """
        images = self.on_device(settings, training=True, device=device)
        self.on_device(settings, training=False, device=device)
        return images


def execute_run(
    spec: RunSpec,
    splits: LoadedSplits,
    rows: TrainRows,
    *,
    world: World,
    log: RunLog,
    weights: Path | None,
    eval_batch_size: int,
    options: RunOptions | None = None,
) -> RunResult:
    """Train and evaluate one run; all ranks return the same result.

    Args:
        rows: the images to train on, and their labels.
        weights: the file that rank 0 writes the trained network to; None saves none.
        eval_batch_size: images per forward pass in evaluation.
        options: see `train`.
    """
    start = time.monotonic()
    settings = spec.settings
    images = splits.for_training(settings, device=world.device)
    labels = torch.from_numpy(rows.labels).to(world.device)
    run = train(
        settings, TrainData(images, labels, rows.mask), world=world, log=log, options=options,
        eval_fn=lambda model: _evaluate(model, splits, settings, eval_batch_size, world),
    )  # fmt: skip
    result = None if run.diverged else _evaluate(run.model, splits, settings, eval_batch_size, world)
    # The last update may break the weights although the last loss was finite.
    finished = result is not None and math.isfinite(result.loss)
    if not finished:
        run_name = f"{options.title}: " if options is not None and options.title else ""
        log.info(f"{run_name}the loss is not finite {run.divergence or 'on the test images, after the last step'}")
    if finished and weights is not None and world.is_main:
        resizing: Resizing = "center_crop" if isinstance(splits.test_images, ImageFiles) else "square"
        save_trained(weights, run.model, settings, splits.class_names, resizing=resizing)
    return RunResult(
        status="finished" if finished else "diverged",
        top1=result.top1 if result and finished else None,
        balanced_accuracy=result.balanced_accuracy(splits.test_labels) if result and finished else None,
        loss=result.loss if result and finished else None,
        correct=result.correct if result and finished else None,
        history=tuple(run.history),
        workers=world.size,
        hardware=tuple(run.hardware),
        skipped_steps=run.skipped_steps,
        micro_batch=run.micro_batch,
        critical_batch=dataclasses.asdict(run.noise_scale) if run.noise_scale else None,
        links=tuple(run.links),
        seconds=run.earlier_seconds + time.monotonic() - start,
    )


def _evaluate(
    model: Network, splits: LoadedSplits, settings: TrainSettings, batch_size: int, world: World
) -> Evaluation:
    images = splits.on_device(settings, training=False, device=world.device)
    labels = torch.from_numpy(splits.test_labels).to(world.device)
    return evaluate(model, images, labels, batch_size=batch_size, world=world)
