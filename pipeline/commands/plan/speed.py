"""Training speed of this machine: a few timed steps of each network."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import nn

from pipeline.batching import BatchSlice, GlobalBatch
from pipeline.datasets.resident import ResidentImages
from pipeline.datasets.sources import TrainingImages
from pipeline.distributed import float32_arithmetic
from pipeline.errors import explain_out_of_memory
from pipeline.models import build_network
from pipeline.optim import OPTIMIZERS, parameter_groups
from pipeline.run_log import RunLog
from pipeline.training.gradients import TrainLoss, accumulate_gradients
from pipeline.training.memory import activation_bytes
from pipeline.training.step_graph import StepGraphs, capture_cuda_graph

# Larger micro-batches take as long per image: the caches (CPU) or the cores (GPU) are full.
_MAX_MICRO_BATCH = {"cpu": 256, "cuda": 4096}
# Smaller micro-batches measure only overhead; larger ones take long to try.
_REFERENCE_MICRO_BATCH = 32
_REPEATS = 6
_SECONDS_PER_SIZE = 1.0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What decides the training time per image.

    Attributes:
        crop_size: side of the network's input in pixels.
        threads: CPU threads of a process.
        tf32, fast: the arithmetic of a GPU, see `float32_arithmetic`.
    """

    network: str
    stem: Literal["imagenet", "cifar"]
    crop_size: int
    n_classes: int
    threads: int
    tf32: bool = False
    fast: bool = False


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Measured for one workload in one process.

    Attributes:
        micro_batch_seconds: size of a micro-batch -> seconds of its forward and backward pass, ascending.
        update_s: seconds of an optimizer step.
        evaluation_s: seconds of a forward pass, per image.
        build_s: seconds to build the network.
        activation_bytes: kept for the backward pass, per image.
        weight_bytes: of all parameters and buffers.
    """

    micro_batch_seconds: dict[int, float]
    update_s: float
    evaluation_s: float
    build_s: float
    activation_bytes: float
    weight_bytes: int

    def micro_batch_s(self, images: int) -> float:
        """Return the seconds of a forward and backward pass of `images` images.

        Interpolates linearly between measured sizes, scales the largest and takes the smallest for sizes below it.
        """
        sizes, seconds = list(self.micro_batch_seconds), list(self.micro_batch_seconds.values())
        if images >= sizes[-1]:
            return seconds[-1] * images / sizes[-1]
        return float(np.interp(images, sizes, seconds))


def measure(workload: Workload, sizes: Collection[int], device: torch.device, *, seconds: float) -> Speed:
    """Measure the speed of a workload with micro-batches of `sizes` images.

    Args:
        seconds: time after which no further size is measured; the size nearest to 32 always is.

    Raises:
        OutOfMemory: a pass of one of the sizes does not fit the memory.
    """
    largest = subsample_sizes({min(size, _MAX_MICRO_BATCH[device.type]) for size in sizes})[-1]
    too_large = (
        f"micro_batch: passes of up to {largest:,} images of {workload.crop_size} pixels through {workload.network} do "
        "not fit the memory; lower it, or give a smaller image_size"
    )
    with float32_arithmetic(tf32=workload.tf32, fast=workload.fast), explain_out_of_memory(too_large):
        return _measured(workload, sizes, device, seconds)


def _measured(workload: Workload, sizes: Collection[int], device: torch.device, seconds: float) -> Speed:
    torch.set_num_threads(workload.threads)
    start = time.perf_counter()
    model = build_network(workload.network, workload.n_classes, stem=workload.stem, seed=0)
    model = model.to(device).to(memory_format=torch.channels_last)
    build_s = time.perf_counter() - start
    chosen = subsample_sizes({min(size, _MAX_MICRO_BATCH[device.type]) for size in sizes})
    train_loss = _synthetic_train_loss(workload, chosen[-1], device)
    micro_batch_seconds: dict[int, float] = {}
    for size in sorted(chosen, key=lambda size: abs(np.log(size / _REFERENCE_MICRO_BATCH))):
        if micro_batch_seconds and time.perf_counter() - start > seconds:
            break
        # The first call is plain, the second captures a graph on a GPU, and the later ones replay it.
        graphs = StepGraphs(
            model, capture_cuda_graph if device.type == "cuda" else None, update=None, log=RunLog.silent()
        )
        micro_batch_seconds[size] = _time_call(partial(_pass, model, train_loss, size, graphs), device)
    largest = max(micro_batch_seconds)
    late = time.perf_counter() - start > seconds
    return Speed(
        micro_batch_seconds=dict(sorted(micro_batch_seconds.items())),
        update_s=_update_seconds(model, device),
        # A backward pass takes twice as long as its forward pass.
        evaluation_s=micro_batch_seconds[largest] / largest / 3
        if late
        else _evaluation_seconds(model, train_loss.images, largest, device),
        build_s=build_s,
        activation_bytes=activation_bytes(model, lambda: train_loss.summed_loss(model, _batch(2), _slice(2))) / 2,
        weight_bytes=sum(tensor.nbytes for tensor in model.state_dict().values()),
    )


def subsample_sizes(sizes: Collection[int], max_sizes: int = 4) -> list[int]:
    """Return the smallest and the largest of `sizes` and some between, about evenly by ratio; ascending."""
    ordered = sorted(sizes)
    if len(ordered) <= max_sizes:
        return ordered
    targets = np.geomspace(ordered[0], ordered[-1], max_sizes)
    return sorted({min(ordered, key=lambda size: abs(np.log(size / target))) for target in targets})


def _synthetic_train_loss(workload: Workload, n: int, device: torch.device) -> TrainLoss:
    side = workload.crop_size
    pixels = np.random.default_rng(0).integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    images = ResidentImages(
        pixels, mean=(0.5,) * 3, std=(0.25,) * 3, crop_size=side, crop_padding=1, flip=True, seed=0, device=device
    )
    return TrainLoss(images=images, labels=torch.zeros(n, dtype=torch.int64, device=device))


def _batch(size: int) -> GlobalBatch:
    return GlobalBatch(sample_ids=np.arange(size), epochs=np.zeros(size, dtype=np.int64))


def _slice(size: int) -> BatchSlice:
    return BatchSlice(rows=slice(0, size), group_sizes=(size,))


def _pass(model: nn.Module, train_loss: TrainLoss, size: int, graphs: StepGraphs) -> None:
    model.train()
    model.zero_grad(set_to_none=True)
    if graphs.run(train_loss, _batch(size), [_slice(size)]) is None:
        accumulate_gradients(model, train_loss, _batch(size), [_slice(size)], world_size=1)


def _update_seconds(model: nn.Module, device: torch.device) -> float:
    # The earlier passes left gradients; a learning rate of zero keeps the weights finite.
    groups = parameter_groups(model, weight_decay=5e-4, decay_norm_and_bias=True)
    optimizer = OPTIMIZERS["sgd"](groups, 0.0, momentum=0.9, nesterov=True)
    return _time_call(optimizer.step, device)


@torch.inference_mode()
def _evaluation_seconds(model: nn.Module, images: TrainingImages, size: int, device: torch.device) -> float:
    model.eval()
    ids = np.arange(size)
    return _time_call(lambda: model(images.evaluation_batch(ids)), device) / size


def _time_call(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the fastest of a few calls: first use and other load can only slow a call down."""
    seconds: list[float] = []
    while len(seconds) < _REPEATS and sum(seconds) < _SECONDS_PER_SIZE:
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
