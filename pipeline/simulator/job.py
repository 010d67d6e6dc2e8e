"""Job of a simulated worker: what it computes and sends in a step, assumed from a torchvision network or measured."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pipeline.distributed import float32_arithmetic
from pipeline.errors import InputError

_BYTES_PER_PARAMETER = 4
# The backward pass computes the gradients of inputs and of weights, each as costly as the forward pass.
_FORWARD_SHARE = 1 / 3
_N_WARMUP, _N_REPEATS = 2, 5


@dataclass(frozen=True, kw_only=True)
class Job:
    """One optimizer step of one worker, measured without communication.

    Attributes:
        local_batch: images per worker and step.
        layer_bytes: (n_layers,) of the gradients, in the order of the backward pass: the last layer first. 0 where a
            layer has no parameters.
        forward_seconds: of the local batch.
        backward_seconds: (n_layers,) of the local batch, in the same order.
        optimizer_seconds: independent of the batch.
    """

    local_batch: int
    layer_bytes: tuple[float, ...]
    forward_seconds: float
    backward_seconds: tuple[float, ...]
    optimizer_seconds: float

    def __post_init__(self) -> None:
        assert self.local_batch >= 1, self.local_batch
        assert len(self.layer_bytes) == len(self.backward_seconds) >= 1, self
        assert min(*self.layer_bytes, *self.backward_seconds, self.forward_seconds, self.optimizer_seconds) >= 0, self
        assert self.forward_seconds + sum(self.backward_seconds) > 0, self

    @property
    def ready_seconds(self) -> list[float]:
        """(n_layers,): when the gradient of each layer is ready, in seconds from the start of the step."""
        return list(accumulate(self.backward_seconds, initial=self.forward_seconds))[1:]

    def share(self, workers: int) -> "Job":
        """Divide the batch among workers, and scale the times of forward and backward in proportion.

        A device is less efficient on fewer images, so this overestimates strong scaling. If local batches can be
        measured, make a job of each measurement.

        Raises:
            ValueError: `workers` does not divide the batch.
        """
        if self.local_batch % workers:
            raise ValueError(f"{self.local_batch} images do not divide among {workers} workers")
        return Job(
            local_batch=self.local_batch // workers,
            layer_bytes=self.layer_bytes,
            forward_seconds=self.forward_seconds / workers,
            backward_seconds=tuple(seconds / workers for seconds in self.backward_seconds),
            optimizer_seconds=self.optimizer_seconds,
        )


def record_event(device: torch.device) -> Any:
    """Record an event without synchronization: the time on a CPU, a CUDA event on a GPU."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def elapsed_seconds(first: Any, second: Any) -> float:
    """Return the seconds between two events of one device, which has reached the second."""
    if isinstance(first, float):
        return float(second - first)
    return float(first.elapsed_time(second)) / 1000


def check_network(network: str, *, image_size: int) -> None:
    """Raise InputError if torchvision has no classifier of this name, or it does not accept images of this size."""
    import torchvision  # a second to import, and a measured job needs no network

    if network not in torchvision.models.list_models(module=torchvision.models):
        raise InputError(f"--network {network}: not a classifier of torchvision; use e.g. resnet50, resnet152 or vgg16")
    try:
        with torch.device("meta"):
            _model(network, n_classes=2)(torch.empty(2, 3, image_size, image_size))
    # Networks raise different errors.
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"--image-size {image_size}: {network} does not accept images of {image_size} pixels ({reason}); use "
            "another size"
        ) from None


def assumed_job(network: str, *, image_size: int, n_classes: int, local_batch: int, images_per_second: float) -> Job:
    """Return the job of a GPU that trains `images_per_second` without communication, optimizer included.

    It assumes that the forward pass takes a third of the time, and that layers share the rest by their FLOPs. Layers
    with parameters and no FLOPs, such as BatchNorm, take no time.

    Args:
        network: a classifier of torchvision.
        image_size: of the square images, in pixels.
        n_classes: of the classifier.
        local_batch: images per step.
        images_per_second: of one GPU.
    """
    with torch.device("meta"):
        model = _model(network, n_classes=n_classes).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.empty(1, 3, image_size, image_size))
    flops = {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}
    # Modules with children can have parameters and FLOPs in addition to theirs, as attention has.
    modules = dict(model.named_modules())
    work = np.array([_own_flops(name, modules, flops) for name in modules], dtype=np.float64)
    sizes = [_BYTES_PER_PARAMETER * sum(p.numel() for p in m.parameters(recurse=False)) for m in modules.values()]
    assert sum(sizes) == _BYTES_PER_PARAMETER * sum(p.numel() for p in model.parameters()), network
    seconds = local_batch / images_per_second
    backward = (1 - _FORWARD_SHARE) * seconds * work / work.sum()
    return Job(
        local_batch=local_batch,
        layer_bytes=tuple(map(float, reversed(sizes))),
        forward_seconds=_FORWARD_SHARE * seconds,
        backward_seconds=tuple(backward[::-1].tolist()),
        optimizer_seconds=0.0,
    )


def measured_job(network: str, *, image_size: int, n_classes: int, local_batch: int, device: torch.device) -> Job:
    """Measure a step on this machine, with the time at which each parameter's gradient is ready; the median of five.

    It trains in IEEE float32, channels last, with SGD with momentum, on random images.
    """
    with float32_arithmetic(tf32=False):
        model = _model(network, n_classes=n_classes).to(device).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        images = torch.randn(local_batch, 3, image_size, image_size, device=device).to(
            memory_format=torch.channels_last
        )
        labels = torch.zeros(local_batch, dtype=torch.int64, device=device)
        jobs = [_timed_step(model, optimizer, images, labels) for _ in range(_N_WARMUP + _N_REPEATS)][_N_WARMUP:]
        return sorted(jobs, key=lambda job: job.ready_seconds[-1] + job.optimizer_seconds)[_N_REPEATS // 2]


def local_device() -> torch.device:
    """Return the device that `--measure` times: the first GPU, or the CPU without one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    """Return the name of a device for readers; for the CPU with its number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"the CPU ({threads} thread{'s' if threads > 1 else ''})"


def with_local_batch(job: Job, local_batch: int) -> Job:
    """Return the job of another local batch, with forward and backward in proportion (see `Job.share` for the bias)."""
    factor = local_batch / job.local_batch
    return replace(
        job,
        local_batch=local_batch,
        forward_seconds=factor * job.forward_seconds,
        backward_seconds=tuple(factor * seconds for seconds in job.backward_seconds),
    )


def _model(network: str, *, n_classes: int) -> nn.Module:
    from torchvision.models import get_model

    with warnings.catch_warnings():
        # The initialization of GoogLeNet and Inception will change, which affects no time.
        warnings.simplefilter("ignore", FutureWarning)
        model: nn.Module = get_model(network, weights=None, num_classes=n_classes)
    return model


def _own_flops(name: str, modules: Mapping[str, nn.Module], flops: Mapping[str, int]) -> int:
    """Return the FLOPs of a module without its children; `flops` has totals by names below the root's."""

    def children(parent: str) -> list[str]:
        return [f"{parent}.{child}" if parent else child for child, _ in modules[parent].named_children()]

    def total(module: str) -> int:
        root = type(modules[""]).__name__
        # ModuleLists are never called, so they have no entry.
        counted = flops.get(f"{root}.{module}" if module else root)
        return counted if counted is not None else sum(map(total, children(module)))

    return total(name) - sum(map(total, children(name)))


def _timed_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> Job:
    ready: list[tuple[float, Any]] = []

    def record_ready(parameter: torch.Tensor) -> None:
        ready.append((float(parameter.nbytes), record_event(images.device)))

    hooks = [parameter.register_post_accumulate_grad_hook(record_ready) for parameter in model.parameters()]
    start = record_event(images.device)
    outputs = model(images)
    # Auxiliary classifiers train too.
    all_logits = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = torch.stack([F.cross_entropy(logits, labels) for logits in all_logits]).sum()
    forward = record_event(images.device)
    loss.backward()
    backward = record_event(images.device)
    optimizer.step()
    end = record_event(images.device)
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)
    for hook in hooks:
        hook.remove()
    optimizer.zero_grad(set_to_none=True)
    # The backward pass continues after the last gradient is ready, and sends nothing more.
    events = [forward, *(event for _, event in ready), backward]
    return Job(
        local_batch=len(images),
        layer_bytes=(*(n_bytes for n_bytes, _ in ready), 0.0),
        forward_seconds=elapsed_seconds(start, forward),
        backward_seconds=tuple(elapsed_seconds(*pair) for pair in pairwise(events)),
        optimizer_seconds=elapsed_seconds(backward, end),
    )
