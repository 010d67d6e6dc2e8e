"""The key of a run: a digest of everything that decides its result."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pipeline.artifacts.provenance import code_digest
from pipeline.models.resnet import RESNETS
from pipeline.training.code_families import code_name
from pipeline.training.numerics import Precision, autocast
from pipeline.training.settings import TrainSettings, recorded_settings

# The import closures of these modules decide a result: images and evaluation, initial weights, and the training loop.
_RESULT_MODULES = ("evaluation", "pretrained", "state", "loop")
# Modules that cannot change a result: messages, and readers of data that the digest of the data covers.
_EXCLUDED = frozenset({"pipeline"}) | frozenset(
    f"pipeline.{name}"
    for name in (
        "run_log",
        "errors",
        "processes",
        "datasets",
        "paths",
        "artifacts.prepared",
        "artifacts.provenance",
        "training.homogeneous_ranks",
    )
)

# To be increased by a change of the training code that changes bits on GPUs alone: the canonical runs, which decide
# whether the code counts as the same, are of CPUs. Keys without a number are of runs before 2026-11-28.
_GPU_CODE = 1
# To be increased by a change that changes the bits of a ResNet on small images on CPUs and no others. The canonical
# runs of these have it in their names, so that the code stays in its family. Keys without a number are of runs before
# 2026-11-28, when all convolutions on maps of 2x2 were computed by products.
SMALL_IMAGES_CODE = 1
_LARGEST_SMALL_IMAGE = {"imagenet": 16, "cifar": 4}  # with layers of 128 or fewer channels on maps of 2x2
_CPU_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16")  # tf32 is of GPUs


@dataclass(frozen=True, kw_only=True)
class RunKey:
    """Everything that decides a run's result, as plain values.

    Attributes:
        job: settings, rows trained on, labels that differ from those of the data, data and training code. The code is
            the name of its family or, without a family, the digest of its syntax trees (a changed comment retrains
            nothing). ResNets on small images also have the number of their code.
        machine: versions, and the kind of GPU, or the CPU's arithmetic and the threads of a worker, which also decide
            the bits. The number of processes is not included: the result belongs to the simulated workers.
        content: digest of images and labels by value, see `prepared_content`; "" in entries of earlier versions. It is
            no part of the fingerprint. `runs import` finds equal data by it where the files have other bytes.
    """

    job: Mapping[str, Any]
    machine: Mapping[str, Any]
    content: str = ""

    @property
    def fingerprint(self) -> str:
        """Hex digest of 24 characters; the run's name in the ledger."""
        text = json.dumps([self.job, self.machine], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def run_key(
    settings: TrainSettings,
    train_mask: NDArray[np.bool_],
    *,
    data_digest: str,
    device: torch.device,
    threads: int,
    relabeled: Mapping[int, int] | None = None,
    data_content: str = "",
) -> RunKey:
    """Return the key of a run on this machine.

    Args:
        train_mask: (N,) bool, the rows trained on.
        data_digest: of the images and labels of both splits.
        relabeled: row -> label, of the rows trained on with another label than that of the data. Without any, the key
            is that of earlier versions, which trained only on the labels of the data.
        threads: CPU threads of each process that trains, where `settings` do not pin them. The caller may have
            another number of threads.
        data_content: of the images and labels, by value.
    """
    values = recorded_settings(settings)
    job: dict[str, Any] = {
        "settings": values,
        "members": hashlib.sha256(np.packbits(train_mask).tobytes()).hexdigest(),
        "data": data_digest,
        "code": code_name(training_code_digest(), values),
    }
    if relabeled:
        job["labels"] = hashlib.sha256(json.dumps(sorted(relabeled.items())).encode()).hexdigest()
    job |= small_images_code(values, on_cpu=device.type == "cpu")
    machine = worker_machine_info(device, settings.threads or threads)
    return RunKey(job=job, machine=machine, content=data_content)


def matches_current_code(key: RunKey) -> bool:
    """Return whether family and number of the code that trained a run are those of this code."""
    job, settings = key.job, key.job.get("settings", {})
    try:
        number = small_images_code(settings, on_cpu="arithmetic" in key.machine).get("small_images_code")
        same_family = code_name(str(job.get("code")), settings) == code_name(training_code_digest(), settings)
    except (AttributeError, TypeError, KeyError):
        return False  # settings of another version, or made up
    return same_family and job.get("small_images_code") == number


def small_images_code(settings: Mapping[str, Any], *, on_cpu: bool) -> dict[str, int]:
    """Return the part of a job that only ResNets with layers of few channels on maps of 2x2 have, and only on CPUs."""
    size: int = settings["format"]["crop_size"]
    small = settings["network"] in RESNETS and size <= _LARGEST_SMALL_IMAGE.get(settings["stem"], 0)
    return {"small_images_code": SMALL_IMAGES_CODE} if on_cpu and small else {}


def checkpoint_folder_name(key: str) -> str:
    """Return the name of an unfinished run's checkpoint folder.

    It contains the digest of the code, not the name of its family: equal results do not promise equal checkpoints.
    """
    return f"{key}-{training_code_digest()[:8]}"


def worker_machine_info(device: torch.device, threads: int) -> dict[str, Any]:
    """Return `machine_info` for processes of `threads` CPU threads each; threads decide no bit of a GPU's results."""
    return {**machine_info(device), **({"threads": threads} if device.type == "cpu" else {})}


def machine_info(device: torch.device) -> dict[str, Any]:
    """Return versions, the kind of device and, for a CPU, its arithmetic, for a GPU, the number of its code."""
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    # Importing these takes seconds.
    others = {name: metadata.version(name) for name in ("torchvision", "timm")}
    if device.type == "cuda":
        return {**versions, **others, "device": torch.cuda.get_device_name(device), "gpu_code": _GPU_CODE}
    kind = torch.backends.cpu.get_cpu_capability()
    # It changes bits of products of some sizes only, which the digest may not contain. COMPATIBLE changes all.
    mkl = os.environ.get("MKL_CBWR", "COMPATIBLE").upper()
    rest = {} if mkl == "COMPATIBLE" else {"MKL_CBWR": mkl}
    return {**versions, **others, "device": kind, "arithmetic": cpu_arithmetic(), **rest}


@cache
def cpu_arithmetic() -> str:
    """Return a hex digest of the bits that small forward and backward passes give on one thread of this process.

    torch, oneDNN and MKL have separate vector kernels. Each library chooses by the processor, its vendor, and variables
    such as ONEDNN_MAX_CPU_ISA, MKL_CBWR or MKL_ENABLE_INSTRUCTIONS, which some processors ignore. No library reports
    its choice, and different choices may give equal bits. So the digest is of the bits themselves, in every precision
    that a recipe can set.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        digest = hashlib.sha256()
        for precision in _CPU_PRECISIONS:
            for tensor in _probe(precision):
                digest.update(tensor.detach().contiguous().numpy().tobytes())
    finally:
        torch.set_num_threads(before)
    return digest.hexdigest()[:16]


@torch.inference_mode(mode=False)
@torch.enable_grad()
def _probe(precision: Precision) -> list[Tensor]:
    """Return loss and gradients, float32, of the layer types of the networks, on 4 images of 16 x 16 pixels."""
    shapes = {"stem": (64, 3, 7, 7), "same": (64, 64, 3, 3), "half": (128, 64, 3, 3), "one": (128, 64, 1, 1)}
    # Kernels split a sum of 4,608 products, the longest of ResNet-18, by the sizes of caches.
    shapes |= {"wide": (512, 128, 1, 1), "long": (32, 512, 3, 3)}
    weights = {name: _numbers(*shape).to(memory_format=torch.channels_last) for name, shape in shapes.items()}
    weights |= {"scale": _numbers(64) + 1.0, "shift": _numbers(64), "head": _numbers(10, 128)}
    for weight in weights.values():
        weight.requires_grad_()
    with autocast(precision, torch.device("cpu")):
        images = _numbers(4, 3, 16, 16).to(memory_format=torch.channels_last)
        x = F.conv2d(images, weights["stem"], stride=2, padding=3)
        x = F.relu(F.batch_norm(x, None, None, weights["scale"], weights["shift"], training=True))
        x = F.relu(F.conv2d(x, weights["same"], padding=1))
        x = F.conv2d(x, weights["half"], stride=2, padding=1) + F.conv2d(x, weights["one"], stride=2)
        x = F.conv2d(F.relu(F.conv2d(x, weights["wide"])), weights["long"], padding=1)
        logits = F.linear(F.adaptive_avg_pool2d(x, 2).flatten(1), weights["head"])
    loss = F.cross_entropy(logits.float(), torch.arange(4), label_smoothing=0.1)
    return [loss, *torch.autograd.grad(loss, list(weights.values()))]


def _numbers(*shape: int) -> Tensor:
    """Return multiples of 2^-16 between -1/2 and 1/2, the same on every processor."""
    return ((torch.arange(math.prod(shape)) * 40503) % 65536 / 65536 - 0.5).view(shape)


@cache
def training_code_digest() -> str:
    """Return the digest of the syntax trees of all code that decides a result."""
    digests = [code_digest(f"pipeline.training.{module}", exclude=_EXCLUDED) for module in _RESULT_MODULES]
    return hashlib.sha256("".join(digests).encode()).hexdigest()
