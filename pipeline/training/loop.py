"""One training run from settings to weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline import distributed
from pipeline.batching import SampleStream, rank_slices
from pipeline.datasets.resident import ResidentImages
from pipeline.distributed import Ranks
from pipeline.models import build
from pipeline.models.resnet import ResNet
from pipeline.optim import OPTIMIZERS, parameter_groups
from pipeline.run_log import RunLog
from pipeline.training.batch_norm import recompute_statistics
from pipeline.training.gradient import accumulate_gradients
from pipeline.training.settings import TrainSettings

# Enough images that the statistics of the last layers, which have few pixels, settle.
_STATISTICS_IMAGES = 2048


@dataclass(frozen=True, kw_only=True)
class Record:
    """Where a run stands, twenty times in its course.

    Attributes:
        epoch: passes over the arm so far; not a whole number.
        train_loss: mean per image since the record before; None where it is not finite.
        lr: of the last step.
    """

    epoch: float
    step: int
    examples: int
    train_loss: float | None
    lr: float


@dataclass(kw_only=True)
class TrainedRun:
    """`model` with its history; `diverged` if the loss stopped being finite, which ends the run."""

    model: ResNet
    history: list[Record] = field(default_factory=list)
    diverged: bool = False


def load_images(
    pixels: NDArray[np.uint8], settings: TrainSettings, *, training: bool, device: torch.device
) -> ResidentImages:
    """A split's images on the device, in the format and with the augmentation of `settings`."""
    return ResidentImages(
        pixels,
        mean=settings.format.mean,
        std=settings.format.std,
        crop_size=settings.format.crop_size,
        crop_padding=settings.crop_padding if training else 0,
        flip=settings.flip and training,
        seed=settings.seed,
        device=device,
    )


def train(
    settings: TrainSettings,
    images: ResidentImages,
    labels: Tensor,
    members: NDArray[np.bool_],
    *,
    ranks: Ranks,
    log: RunLog,
    title: str,
    initialise: Callable[[ResNet], None] | None = None,
) -> TrainedRun:
    """Train a network; all ranks return the same weights.

    Args:
        labels: (N,) int64 of the whole data set, on the device.
        members: (N,) bool, the rows to train on.
        title: of the progress display.
        initialise: overwrites fresh weights, e.g. by pretrained ones.

    Raises:
        InputError: the number of processes does not divide the simulated workers.
    """
    distributed.check_divides(ranks.count, settings.simulated_workers)
    model = build(settings.network, settings.n_classes, stem=settings.stem, seed=settings.seed)
    if initialise is not None:
        initialise(model)
    model = model.to(ranks.device).to(memory_format=torch.channels_last)
    run = TrainedRun(model=model)
    optimizer = OPTIMIZERS[settings.optimizer](
        parameter_groups(model, weight_decay=settings.weight_decay, decay_norm_and_bias=settings.decay_norm_and_bias),
        settings.learning_rate,
        **settings.optimizer_options,
    )
    stream = SampleStream(members, settings.seed)
    parts = rank_slices(settings.batch_size, settings.simulated_workers, rank=ranks.rank, ranks=ranks.count)
    parallel = distributed.data_parallel(model, ranks.device)
    parallel.train()
    # Twenty records a run: enough for a curve, and few enough not to hold up the device.
    record_every = max(1, settings.steps // 20)
    loss_sum, counted = torch.zeros((), device=ranks.device), 0
    with log.progress(title, settings.steps, "steps") as progress:
        for step in range(settings.steps):
            rate = settings.rate(step)
            for group in optimizer.param_groups:
                group["lr"] = rate
            ids, epochs = stream.batch(step, settings.batch_size)
            loss_sum += accumulate_gradients(
                parallel, images, labels, ids, epochs, parts,
                ranks=ranks.count, label_smoothing=settings.label_smoothing,
            )  # fmt: skip
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            counted += settings.batch_size
            progress.update()
            if (step + 1) % record_every == 0 or step == settings.steps - 1:
                loss = float(distributed.all_reduce_sum_(loss_sum)) / counted
                loss_sum, counted = torch.zeros((), device=ranks.device), 0
                run.history.append(_record(step + 1, settings, stream.n_train, loss, rate))
                if not math.isfinite(loss):
                    run.diverged = True
                    return run
    n_batches = math.ceil(_STATISTICS_IMAGES / settings.batch_size)
    batches = [stream.batch(settings.steps + index, settings.batch_size) for index in range(n_batches)]
    recompute_statistics(model, images, batches, parts)
    return run


def _record(steps_done: int, settings: TrainSettings, n_train: int, loss: float, rate: float) -> Record:
    examples = steps_done * settings.batch_size
    return Record(
        epoch=examples / n_train,
        step=steps_done,
        examples=examples,
        train_loss=loss if math.isfinite(loss) else None,
        lr=rate,
    )
