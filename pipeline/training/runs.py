"""Execute one run of a study, and write runs as table rows."""

import dataclasses
import json
import math
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from pipeline.artifacts.prepared import ImageFiles, ImageSource
from pipeline.batching import worker_slices
from pipeline.datasets.sources import TrainingImages
from pipeline.distributed import World
from pipeline.models.resnet import Network
from pipeline.run_log import RunLog
from pipeline.training.arm_rows import TrainRows
from pipeline.training.evaluation import Evaluation, evaluate, load_images
from pipeline.training.grid import RunSpec
from pipeline.training.loop import TrainData, train
from pipeline.training.recorded_settings import recorded_settings
from pipeline.training.result_cache import RunResult
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
    images = splits.on_device(settings, training=True, device=world.device)
    labels = torch.from_numpy(rows.labels).to(world.device)
    run = train(
        settings, TrainData(images, labels, rows.mask), world=world, log=log, options=options,
        eval_fn=lambda model: _evaluate(model, splits, settings, eval_batch_size, world),
    )  # fmt: skip
    result = None if run.diverged else _evaluate(run.model, splits, settings, eval_batch_size, world)
    # The last update may break the weights although the last loss was finite.
    finished = result is not None and math.isfinite(result.loss)
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


def run_row(study: str, spec: RunSpec, key: str, result: RunResult | None) -> dict[str, object]:
    """Return a run's row of data/train/<study>.parquet; `result` is None for a skipped run."""
    settings = spec.settings
    # A run that diverged stopped early.
    steps = result.history[-1].step if result else 0
    examples = settings.batch_sizes.examples(steps)
    noise = (result.critical_batch if result else None) or {}
    return {
        "study": study,
        "fingerprint": key,
        "status": result.status if result else "skipped",
        "reason": spec.skip_reason
        or ("the loss stopped being finite" if result and result.status == "diverged" else ""),
        "model": settings.network,
        "arm": spec.arm,
        "filter_network": spec.filter_network,
        "batch_size": settings.batch_size,
        "simulated_workers": settings.simulated_workers,
        "bn_group": worker_slices(settings.batch_size, settings.simulated_workers, settings.bn_group)[0].group_sizes[0],
        "workers": result.workers if result else None,
        "trained_on": "; ".join(result.hardware) if result else None,
        "micro_batch": result.micro_batch if result else None,
        "reduction": settings.reduction,
        "precision": settings.precision,
        "optimizer": settings.optimizer,
        "schedule": settings.schedule,
        "learning_rate": spec.learning_rate,
        "peak_learning_rate": settings.learning_rate,
        "warmup_steps": settings.warmup_steps,
        "weight_decay": settings.weight_decay,
        "seed": settings.seed,
        "n_train": spec.n_train,
        "n_relabeled": spec.n_relabeled,
        "steps": steps if result else None,
        "epochs": examples / spec.n_train if result else None,
        "examples": examples if result else None,
        "top1": result.top1 if result else None,
        "balanced_accuracy": result.balanced_accuracy if result else None,
        "loss": result.loss if result else None,
        "skipped_steps": result.skipped_steps if result else None,
        **{name: noise.get(key) for name, key in _CRITICAL_BATCH.items()},
        "chain_end": result.links[-1].sha256 if result and result.links else None,
        "settings": json.dumps(recorded_settings(settings), sort_keys=True),
    }


# Column -> part of the noise scale's estimate.
_CRITICAL_BATCH = {"critical_batch": "critical_batch", "critical_batch_low": "low", "critical_batch_high": "high"}

RUNS_SCHEMA = pa.schema(
    [
        *(
            (name, pa.string())
            for name in ("study", "fingerprint", "status", "reason", "model", "arm", "filter_network")
        ),
        *((name, pa.int64()) for name in ("batch_size", "simulated_workers", "bn_group", "workers")),
        ("trained_on", pa.string()),
        ("micro_batch", pa.int64()),
        *((name, pa.string()) for name in ("reduction", "precision", "optimizer", "schedule")),
        *((name, pa.float64()) for name in ("learning_rate", "peak_learning_rate")),
        ("warmup_steps", pa.int64()),
        ("weight_decay", pa.float64()),
        *((name, pa.int64()) for name in ("seed", "n_train", "n_relabeled", "steps")),
        ("epochs", pa.float64()),
        ("examples", pa.int64()),
        *((name, pa.float64()) for name in ("top1", "balanced_accuracy", "loss")),
        ("skipped_steps", pa.int64()),
        *((name, pa.float64()) for name in _CRITICAL_BATCH),
        ("chain_end", pa.string()),
        ("settings", pa.string()),
    ]
)

HISTORY_SCHEMA = pa.schema(
    [
        ("study", pa.string()),
        ("fingerprint", pa.string()),
        ("epoch", pa.float64()),
        *((name, pa.int64()) for name in ("step", "examples")),
        *((name, pa.float64()) for name in ("train_loss", "lr", "top1", "test_loss")),
    ]
)
