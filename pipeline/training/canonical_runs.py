"""Short runs whose hashes show whether two versions of the training code compute the same bits.

Together they use every network but those of timm and torchvision, every optimizer, schedule and reduction, both stems,
images in memory and in files. They run on one process and one CPU thread, so that the hashes do not depend on the
number of cores. A changed job needs a new name: hashes of equal names are compared.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from PIL import Image

from pipeline.artifacts.prepared import ImageFiles, ImageSource
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.distributed import World
from pipeline.durations import BatchStage
from pipeline.models import build_network
from pipeline.models.network import Network
from pipeline.run_log import RunLog
from pipeline.training.evaluation import Evaluation, evaluate, load_images
from pipeline.training.loop import TrainData, train
from pipeline.training.pretrained import weight_initializer
from pipeline.training.run_key import SMALL_IMAGES_CODE
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import ImageFormat, TrainSettings

STEPS = 20
_N_IMAGES = 96
_N_CLASSES = 4
_IN_FILES = "images in files"
_FROM_A_FILE = "resnet18 bf16 from a file, 20 px"
_ALONE = World(rank=0, size=1, device=torch.device("cpu"))

_COMMON: Mapping[str, Any] = {
    "network": "small_cnn", "stem": "imagenet", "n_classes": _N_CLASSES, "crop_padding": 1, "flip": True,
    "batch_size": 16, "simulated_workers": 1, "steps": STEPS, "optimizer": "sgd",
    "optimizer_options": {"momentum": 0.9, "nesterov": True}, "learning_rate": 0.02, "weight_decay": 5e-4,
    "decay_norm_and_bias": False, "schedule": "constant", "schedule_options": {}, "warmup_steps": 0,
    "label_smoothing": 0.0, "seed": 1,
}  # fmt: skip
_MOMENTS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6}
# For networks that differ from those of other jobs in numbers of layers and channels alone.
_FEW_STEPS: Mapping[str, Any] = {"steps": 4, "batch_size": 8}
# Side of the images, and the settings that differ from `_COMMON`.
_JOBS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "resnet18 sgd": (28, {
        "network": "resnet18", "batch_size": 24, "simulated_workers": 2, "noise_scale_steps": 7,
        "schedule": "cosine", "warmup_steps": 4, "warmup_start_factor": 0.25, "label_smoothing": 0.1,
        "accuracy_steps": 8,
    }),
    "resnet18 exact, 20 px": (20, {
        "network": "resnet18", "simulated_workers": 2, "reduction": "exact", "threads": 1, "ema_decay": 0.9,
        "clip_norm": 0.5, "schedule": "polynomial", "schedule_options": {"power": 2.0},
    }),
    _FROM_A_FILE: (20, {"network": "resnet18", "precision": "bf16"}),
    "resnet18 cifar lars": (8, {
        "network": "resnet18", "stem": "cifar", "bn_group": 8, "optimizer": "lars", "learning_rate": 5.0,
        "optimizer_options": {"momentum": 0.9, "nesterov": False, "trust_coefficient": 0.001},
        "decay_norm_and_bias": True, "schedule": "step", "schedule_options": {"milestones": [10], "factor": 0.1},
    }),
    "resnet50 lamb, 20 px": (20, {
        "network": "resnet50", "batch_size": 8, "optimizer": "lamb", "optimizer_options": _MOMENTS,
        "learning_rate": 0.005, "schedule": "one_cycle", "schedule_options": {"rise": 0.3, "initial_factor": 0.04},
    }),
    # Fewer images than some convolutions on small maps need to be computed by products.
    "resnet50 few images, 20 px": (20, {
        "network": "resnet50", "batch_size": 7, "optimizer": "lamb", "optimizer_options": _MOMENTS,
        "learning_rate": 0.001,
        "batch_stages": (BatchStage(batch_size=2, until_step=6), BatchStage(batch_size=4, until_step=12)),
    }),
    # Batches on both sides of the limits for convolutions of few channels on small maps.
    f"resnet18 small images, code {SMALL_IMAGES_CODE}": (16, {
        "network": "resnet18", "batch_size": 48, "simulated_workers": 4,
        "batch_stages": (BatchStage(batch_size=16, until_step=6), BatchStage(batch_size=32, until_step=12)),
    }),
    f"resnet50 small images, code {SMALL_IMAGES_CODE}": (8, {
        "network": "resnet50", "batch_size": 12, "learning_rate": 0.005,
    }),
    "small_cnn muon": (16, {
        "optimizer": "muon", "optimizer_options": {"momentum": 0.95, "nesterov": True}, "clip_norm": 1.0,
        "batch_stages": (BatchStage(batch_size=4, until_step=5), BatchStage(batch_size=8, until_step=12)),
        "batch_lr_scaling": "linear", "schedule": "cosine", "warmup_steps": 6,
    }),
    "small_cnn adamw": (16, {
        "optimizer": "adamw", "optimizer_options": _MOMENTS, "learning_rate": 0.002, "ema_decay": 0.99,
        "local_from_step": 10, "local_period": 3,
    }),
    "small_cnn radam bf16 noise": (16, {
        "optimizer": "radam", "optimizer_options": _MOMENTS, "learning_rate": 0.002, "simulated_workers": 4,
        "threads": 1, "precision": "bf16", "noise_scale_steps": 5,
    }),
    "small_cnn exact": (16, {
        "batch_size": 15, "simulated_workers": 3, "reduction": "exact", "threads": 1, "clip_norm": 1.0,
        "noise_scale_steps": 5, "schedule": "cosine", "warmup_steps": 4,
    }),
    "resnet9 dynamics": (16, {
        "network": "resnet9", "learning_rate": 0.1, "schedule": "one_cycle",
        "schedule_options": {"rise": 0.2, "initial_factor": 0.0}, "label_smoothing": 0.1, "ema_decay": 0.9,
    }),
    "resnet9_wide": (16, {"network": "resnet9_wide", "learning_rate": 0.1, **_FEW_STEPS}),
    "resnet34, 20 px": (20, {"network": "resnet34", **_FEW_STEPS}),
    "resnet101, 20 px": (20, {"network": "resnet101", **_FEW_STEPS}),
    "resnet152, 20 px": (20, {"network": "resnet152", **_FEW_STEPS}),
    _IN_FILES: (24, {"crop_area": 0.25, "crop_padding": 0, "accuracy_examples": 100}),
}  # fmt: skip


def canonical_jobs() -> dict[str, TrainSettings]:
    """Return the settings of each run, by name."""
    return {name: _settings(size, changes) for name, (size, changes) in _JOBS.items()}


def _settings(size: int, changes: Mapping[str, Any]) -> TrainSettings:
    values = {**_COMMON, **changes}
    crop_size = 16 if values["crop_padding"] == 0 else size
    image_format = ImageFormat(image_size=size, crop_size=crop_size, mean=(0.4, 0.45, 0.5), std=(0.25, 0.2, 0.3))
    return TrainSettings(format=image_format, **values)


def canonical_hashes(log: RunLog | None = None) -> dict[str, str]:
    """Return the hash of each run, 16 hex digits: of its chain, its history and its evaluation.

    Each run takes seconds. This process is limited to one CPU thread meanwhile.

    Args:
        log: shows the progress.
    """
    before, jobs, hashes = torch.get_num_threads(), canonical_jobs(), {}
    torch.set_num_threads(1)
    try:
        with (log or RunLog.silent()).progress("canonical runs", total=len(jobs), unit="run") as progress:
            for name, settings in jobs.items():
                hashes[name] = _run_hash(name, settings)
                progress.update()
    finally:
        torch.set_num_threads(before)
    return hashes


def _run_hash(name: str, settings: TrainSettings) -> str:
    size = settings.format.image_size
    initialize = _from_a_file(settings) if name == _FROM_A_FILE else None
    with _source(name, _images(size, seed=0)) as images, _source(name, _images(size, seed=1)) as test_images:
        return _trained(settings, images, test_images, initialize)


def _from_a_file(settings: TrainSettings) -> Callable[[Network], None] | None:
    """Initialize from a file with the weights of another seed and number of classes."""
    with TemporaryDirectory() as folder:
        other = build_network(settings.network, _N_CLASSES + 1, stem=settings.stem, seed=settings.seed + 1)
        torch.save(other.state_dict(), Path(folder, "weights.pt"))
        return weight_initializer(f"{folder}/weights.pt", settings.network)


def _trained(
    settings: TrainSettings,
    images: ImageSource,
    test_images: ImageSource,
    initialize: Callable[[Network], None] | None,
) -> str:
    labels = torch.arange(_N_IMAGES) % _N_CLASSES
    test = load_images(test_images, settings, training=False, device=_ALONE.device)

    def eval_fn(model: Network) -> Evaluation:
        return evaluate(model, test, labels, batch_size=40, world=_ALONE)

    train_images = load_images(images, settings, training=True, device=_ALONE.device)
    run = train(
        settings, TrainData(train_images, labels, np.arange(_N_IMAGES) % 8 > 0), world=_ALONE, log=RunLog.silent(),
        options=RunOptions(micro_batch=16), initialize=initialize, eval_fn=eval_fn, track_confidence=True,
    )  # fmt: skip
    assert not run.diverged
    assert run.confidence is not None
    result = eval_fn(run.model)
    values: dict[str, Any] = {
        "links": [{"step": link.step, "sha256": link.sha256} for link in run.links],
        "history": [dataclasses.asdict(record) for record in run.history],
        "noise": dataclasses.asdict(run.noise_scale) if run.noise_scale else None,
        "confidence": run.confidence.tobytes().hex(),
        "correct": result.correct.tobytes().hex(),
        "loss": result.loss,
    }
    if settings.network == "resnet9":
        # The other jobs are older than the dynamics, and their hashes are compared with those of earlier code.
        assert run.dynamics is not None
        values["dynamics"] = [run.dynamics.margin.tobytes().hex(), run.dynamics.forgetting.tobytes().hex()]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _images(size: int, *, seed: int) -> NDArray[np.uint8]:
    """Return uint8 (N, size, size, 3), of classes that differ in brightness."""
    generator = np.random.default_rng([seed, size])
    noise = generator.integers(0, 90, (_N_IMAGES, size, size, 3))
    shade = 40 * (np.arange(_N_IMAGES) % _N_CLASSES)
    return (noise + shade[:, None, None, None]).astype(np.uint8)


@contextmanager
def _source(name: str, pixels: NDArray[np.uint8]) -> Iterator[ImageSource]:
    """Yield the images in memory or as files."""
    if name != _IN_FILES:
        yield pixels
        return
    with TemporaryDirectory() as folder:
        names = [f"{row}.png" for row in range(len(pixels))]
        for file, image in zip(names, pixels, strict=True):
            Image.fromarray(image).save(Path(folder, file))
        digests = [sha256_of_file(Path(folder, file)) for file in names]
        yield ImageFiles(Path(folder), pa.chunked_array([names]), pa.chunked_array([digests]))
