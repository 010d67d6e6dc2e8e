"""How fast this machine trains: a few real steps of each network, timed."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import nn

from pipeline.batching import BatchSlice
from pipeline.datasets.resident import ResidentImages
from pipeline.datasets.sources import TrainingImages
from pipeline.models import build_network
from pipeline.optim import OPTIMIZERS, parameter_groups
from pipeline.training.gradients import GlobalBatch, TrainLoss, accumulate_gradients
from pipeline.training.memory import activation_bytes

# Larger parts take as long per image as these: the caches (CPU) or the cores (GPU) are full.
_MAX_MICRO_BATCH = {"cpu": 256, "cuda": 4096}
# Passes of a few images are all overhead and say nothing of large ones, which take long to try.
_REFERENCE_MICRO_BATCH = 32
_REPEATS = 6
_SECONDS_PER_SIZE = 1.0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What decides how long an image takes to train on.

    Attributes:
        crop_size: side in pixels of what the network sees.
        threads: CPU threads of a process.
    """

    network: str
    stem: Literal["imagenet", "cifar"]
    crop_size: int
    n_classes: int
    threads: int


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Measured for one workload in one process.

    Attributes:
        parts: images in one forward and backward pass -> its seconds, ascending.
        update_s: one optimizer step.
        evaluation_s: forward alone, per image.
        build_s: making the network.
        activation_bytes: kept for the backward pass, per image.
        weight_bytes: of all parameters and buffers.
    """

    parts: dict[int, float]
    update_s: float
    evaluation_s: float
    build_s: float
    activation_bytes: float
    weight_bytes: int

    def micro_batch_s(self, images: int) -> float:
        """Seconds of one forward and backward pass.

        Between measured sizes by line, above them by ratio, below them as the smallest.
        """
        sizes, seconds = list(self.parts), list(self.parts.values())
        if images >= sizes[-1]:
            return seconds[-1] * images / sizes[-1]
        return float(np.interp(images, sizes, seconds))


def measure(workload: Workload, sizes: Collection[int], device: torch.device, *, seconds: float) -> Speed:
    """Time a workload for parts of `sizes` images.

    Args:
        seconds: after these no further size is tried; that nearest to 32 always is.
    """
    torch.set_num_threads(workload.threads)
    start = time.perf_counter()
    model = build_network(workload.network, workload.n_classes, stem=workload.stem, seed=0)
    model = model.to(device).to(memory_format=torch.channels_last)
    build_s = time.perf_counter() - start
    chosen = subsample_sizes({min(size, _MAX_MICRO_BATCH[device.type]) for size in sizes})
    train_loss = _synthetic_train_loss(workload, chosen[-1], device)
    parts: dict[int, float] = {}
    for size in sorted(chosen, key=lambda size: abs(np.log(size / _REFERENCE_MICRO_BATCH))):
        if parts and time.perf_counter() - start > seconds:
            break
        parts[size] = _time_call(partial(_pass, model, train_loss, size), device)
    largest = max(parts)
    late = time.perf_counter() - start > seconds
    return Speed(
        parts=dict(sorted(parts.items())),
        update_s=_update_seconds(model, device),
        # A backward pass takes twice as long as its forward pass.
        evaluation_s=parts[largest] / largest / 3
        if late
        else _evaluation_seconds(model, train_loss.images, largest, device),
        build_s=build_s,
        activation_bytes=activation_bytes(model, lambda: train_loss.summed_loss(model, _batch(2), _part(2))) / 2,
        weight_bytes=sum(tensor.nbytes for tensor in model.state_dict().values()),
    )


def subsample_sizes(sizes: Collection[int], at_most: int = 4) -> list[int]:
    """The smallest and the largest of `sizes` and some between, about evenly by ratio; ascending."""
    ordered = sorted(sizes)
    if len(ordered) <= at_most:
        return ordered
    wanted = np.geomspace(ordered[0], ordered[-1], at_most)
    return sorted({min(ordered, key=lambda size: abs(np.log(size / value))) for value in wanted})


def _synthetic_train_loss(workload: Workload, n: int, device: torch.device) -> TrainLoss:
    side = workload.crop_size
    pixels = np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    images = ResidentImages(
        pixels, mean=(0.5,) * 3, std=(0.25,) * 3, crop_size=side, crop_padding=1, flip=True, seed=0, device=device
    )
    return TrainLoss(images=images, labels=torch.zeros(n, dtype=torch.int64, device=device))


def _batch(size: int) -> GlobalBatch:
    return GlobalBatch(sample_ids=np.arange(size), epochs=np.zeros(size, dtype=np.int64))


def _part(size: int) -> BatchSlice:
    return BatchSlice(rows=slice(0, size), group_sizes=(size,))


def _pass(model: nn.Module, train_loss: TrainLoss, size: int) -> None:
    model.train()
    accumulate_gradients(model, train_loss, _batch(size), [_part(size)], world_size=1)


def _update_seconds(model: nn.Module, device: torch.device) -> float:
    # Gradients are there from the passes before; a rate of zero keeps the weights finite.
    groups = parameter_groups(model, weight_decay=5e-4, decay_norm_and_bias=True)
    optimizer = OPTIMIZERS["sgd"](groups, 0.0, momentum=0.9, nesterov=True)
    return _time_call(optimizer.step, device)


@torch.inference_mode()
def _evaluation_seconds(model: nn.Module, images: TrainingImages, size: int, device: torch.device) -> float:
    model.eval()
    ids = np.arange(size)
    return _time_call(lambda: model(images.evaluation_batch(ids)), device) / size


def _time_call(work: Callable[[], object], device: torch.device) -> float:
    """The fastest of a few calls: first use, and other work on the machine, only make one slower."""
    seconds: list[float] = []
    while len(seconds) < _REPEATS and sum(seconds) < _SECONDS_PER_SIZE:
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
