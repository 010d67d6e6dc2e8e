"""Jobs, and those of a network."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import get_model, list_models

from pipeline.errors import InputError

# What each worker computes in a step.


@dataclass(frozen=True, kw_only=True)
class Job:
    """One optimizer step of one worker, measured without communication.

    Attributes:
        local_batch: images of a worker and step.
        layer_bytes: (n_layers,) of the gradients, in the order of the backward pass: the last layer first. 0 where a
            layer has no parameters.
        forward_seconds: of the local batch.
        backward_seconds: (n_layers,) of the local batch, in the same order.
        optimizer_seconds: whatever the batch.
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
        """(n_layers,): when the gradient of each layer is there, from the start of the step."""
        return list(accumulate(self.backward_seconds, initial=self.forward_seconds))[1:]

    def share(self, workers: int) -> "Job":
        """The same global batch divided among workers, with times of forward and backward in proportion.

        A device is less efficient on fewer images, so this flatters strong scaling; where the local batches can be
        measured, measure them and make a job of each.

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


# Moments on a device, without holding it up.


def record_event(device: torch.device) -> Any:
    """Now on a CPU; on a GPU when it has done what was started so far."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def elapsed_seconds(first: Any, second: Any) -> float:
    """Of two moments of one device, which has reached the second."""
    if isinstance(first, float):
        return float(second - first)
    return float(first.elapsed_time(second)) / 1000


# What a worker computes and sends in a step: of torchvision's classifiers, from their layers or timed here.


_BYTES_OF_A_PARAMETER = 4
# The backward pass works out the gradients of inputs and of weights: each is what the forward pass is.
_FORWARD_SHARE = 1 / 3
_WARM_UP, _REPEATS = 2, 5


def check_network(network: str, *, image_size: int) -> None:
    """Raises InputError where torchvision has no classifier of this name, or it does not take images of this size."""
    if network not in list_models(module=torchvision.models):
        raise InputError(f"--network {network}: no classifier of torchvision; give e.g. resnet50, resnet152 or vgg16")
    try:
        with torch.device("meta"):
            _model(network, n_classes=2)(torch.empty(2, 3, image_size, image_size))
    # Each network says it in its own way.
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"--image-size {image_size}: {network} does not take images of {image_size} pixels ({reason}); give another"
        ) from None


def assumed_job(network: str, *, image_size: int, n_classes: int, local_batch: int, images_per_second: float) -> Job:
    """A step of a GPU that trains so many images a second alone; the optimizer is in them.

    Assumed: a third of the time is the forward pass, and layers share the rest by their multiplications. What has
    parameters and multiplies nothing, such as BatchNorm, takes no time.

    Args:
        image_size: of the square images, in pixels.
    """
    with torch.device("meta"):
        model = _model(network, n_classes=n_classes).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.empty(1, 3, image_size, image_size))
    flops = {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}
    # Modules with parts of their own have parameters and work beside these, as attention has.
    modules = dict(model.named_modules())
    work = np.array([_own_flops(name, modules, flops) for name in modules], dtype=np.float64)
    sizes = [_BYTES_OF_A_PARAMETER * sum(p.numel() for p in one.parameters(recurse=False)) for one in modules.values()]
    assert sum(sizes) == _BYTES_OF_A_PARAMETER * sum(p.numel() for p in model.parameters()), network
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
    """A step as this machine takes it, with the moment at which each parameter's gradient is there; the median of five.

    Float32, channels last, SGD with momentum; random images.
    """
    model = _model(network, n_classes=n_classes).to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    images = torch.randn(local_batch, 3, image_size, image_size, device=device).to(memory_format=torch.channels_last)
    labels = torch.zeros(local_batch, dtype=torch.int64, device=device)
    jobs = [_timed_step(model, optimizer, images, labels) for _ in range(_WARM_UP + _REPEATS)][_WARM_UP:]
    return sorted(jobs, key=lambda job: job.ready_seconds[-1] + job.optimizer_seconds)[_REPEATS // 2]


def local_device() -> torch.device:
    """What `--measure` times: the first GPU, or the CPU where there is none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_name(device: torch.device) -> str:
    """As a reader may compare it with another: with the threads that a CPU works with."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"the CPU ({threads} thread{'s' if threads > 1 else ''})"


def with_local_batch(job: Job, local_batch: int) -> Job:
    """Another local batch, with forward and backward in proportion: `Job.share` says what that flatters."""
    factor = local_batch / job.local_batch
    return replace(
        job,
        local_batch=local_batch,
        forward_seconds=factor * job.forward_seconds,
        backward_seconds=tuple(factor * seconds for seconds in job.backward_seconds),
    )


def _model(network: str, *, n_classes: int) -> nn.Module:
    with warnings.catch_warnings():
        # How GoogLeNet and Inception are initialised will change, and decides no time.
        warnings.simplefilter("ignore", FutureWarning)
        model: nn.Module = get_model(network, weights=None, num_classes=n_classes)
    return model


def _own_flops(name: str, modules: Mapping[str, nn.Module], flops: Mapping[str, int]) -> int:
    """Of a module without its parts; `flops` has those of all, by their names below the root's."""

    def parts(of: str) -> list[str]:
        return [f"{of}.{part}" if of else part for part, _ in modules[of].named_children()]

    def with_parts(of: str) -> int:
        root = type(modules[""]).__name__
        # A list of modules is never called itself.
        found = flops.get(f"{root}.{of}" if of else root)
        return found if found is not None else sum(map(with_parts, parts(of)))

    return with_parts(name) - sum(map(with_parts, parts(name)))


def _timed_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> Job:
    ready: list[tuple[float, Any]] = []

    def note(parameter: torch.Tensor) -> None:
        ready.append((float(parameter.nbytes), record_event(images.device)))

    hooks = [parameter.register_post_accumulate_grad_hook(note) for parameter in model.parameters()]
    start = record_event(images.device)
    outputs = model(images)
    # Auxiliary classifiers learn too.
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
    # What comes after the last gradient is there belongs to the backward pass too, and sends nothing.
    moments = [forward, *(at for _, at in ready), backward]
    return Job(
        local_batch=len(images),
        layer_bytes=(*(n_bytes for n_bytes, _ in ready), 0.0),
        forward_seconds=elapsed_seconds(start, forward),
        backward_seconds=tuple(elapsed_seconds(*pair) for pair in pairwise(moments)),
        optimizer_seconds=elapsed_seconds(backward, end),
    )
