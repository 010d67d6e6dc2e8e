"""What a worker computes and sends in a step: of torchvision's classifiers, from their layers or timed here."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import get_model, list_models

from pipeline.commands.diagnosing.moments import moment, seconds_between
from pipeline.costmodel import Job
from pipeline.errors import InputError

_BYTES_OF_A_PARAMETER = 4
# The backward pass works out the gradients of inputs and of weights: each is what the forward pass is.
_FORWARD_SHARE = 1 / 3
_WARM_UP, _REPEATS = 2, 5


def check_network(network: str) -> None:
    """Raises InputError where torchvision has no classifier of this name."""
    if network not in list_models(module=torchvision.models):
        raise InputError(f"--network {network}: no classifier of torchvision; give e.g. resnet50, resnet152 or vgg16")


def assumed_job(network: str, *, image_size: int, n_classes: int, local_batch: int, images_per_second: float) -> Job:
    """A step of a GPU that trains so many images a second alone; the optimizer is in them.

    Assumed: a third of the time is the forward pass, and layers share the rest by their multiplications. What has
    parameters and multiplies nothing, such as BatchNorm, takes no time.

    Args:
        image_size: of the square images, in pixels.
    """
    with torch.device("meta"):
        model = get_model(network, weights=None, num_classes=n_classes).eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.empty(1, 3, image_size, image_size))
    flops = {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}
    leaves = [(name, module) for name, module in model.named_modules() if not list(module.children())]
    work = np.array([flops.get(f"{type(model).__name__}.{name}", 0) for name, _ in leaves], dtype=np.float64)
    sizes = [_BYTES_OF_A_PARAMETER * sum(p.numel() for p in module.parameters()) for _, module in leaves]
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
    model = get_model(network, weights=None, num_classes=n_classes).to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    images = torch.randn(local_batch, 3, image_size, image_size, device=device).to(memory_format=torch.channels_last)
    labels = torch.zeros(local_batch, dtype=torch.int64, device=device)
    jobs = [_timed_step(model, optimizer, images, labels) for _ in range(_WARM_UP + _REPEATS)][_WARM_UP:]
    return sorted(jobs, key=lambda job: job.ready_seconds[-1] + job.optimizer_seconds)[_REPEATS // 2]


def of_local_batch(job: Job, local_batch: int) -> Job:
    """Another local batch, with forward and backward in proportion: `Job.share` says what that flatters."""
    factor = local_batch / job.local_batch
    return replace(
        job,
        local_batch=local_batch,
        forward_seconds=factor * job.forward_seconds,
        backward_seconds=tuple(factor * seconds for seconds in job.backward_seconds),
    )


def _timed_step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> Job:
    ready: list[tuple[float, Any]] = []

    def note(parameter: torch.Tensor) -> None:
        ready.append((float(parameter.nbytes), moment(images.device)))

    hooks = [parameter.register_post_accumulate_grad_hook(note) for parameter in model.parameters()]
    start = moment(images.device)
    loss = F.cross_entropy(model(images), labels)
    forward = moment(images.device)
    loss.backward()
    backward = moment(images.device)
    optimizer.step()
    end = moment(images.device)
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
        forward_seconds=seconds_between(start, forward),
        backward_seconds=tuple(seconds_between(*pair) for pair in pairwise(moments)),
        optimizer_seconds=seconds_between(backward, end),
    )
