"""The measurements on a GPU: functions that return the cases of a step, by name (see `running`).

With `dry_run` the same code runs at sizes that take seconds on a CPU.
"""

import hashlib
import math
import os
import platform
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import Tensor

from benchmarks.gpu_day import timing
from benchmarks.gpu_day.processes import start_process
from benchmarks.gpu_day.running import Cases, Row
from benchmarks.gpu_day.timing import TimingPlan, settings_of, train_on
from benchmarks.loop_speed import N_CLASSES, random_images
from pipeline import distributed
from pipeline.errors import InputError
from pipeline.models import NETWORKS, build_network
from pipeline.models.resnet import RESNETS
from pipeline.run_log import Progress, RunLog
from pipeline.training.checkpointing import Checkpointer, Checkpoints, stop_and_save_flags
from pipeline.training.evaluation import evaluate, evaluation_images
from pipeline.training.numerics import Precision
from pipeline.training.settings import TrainSettings

PRECISIONS: tuple[Precision, ...] = ("bf16", "fp32", "fp16", "tf32")
BATCHES: tuple[int, ...] = (4096, 16, 256, 20480)
_TINY = 8
"""Pixels per side of an image, and images per batch, in a dry run."""
_FLOAT64_TOLERANCE = 1e-12
"""Relative distance within which sums of different order agree in float64."""


def machine(*, dry_run: bool) -> Row:
    """Return hardware and versions.

    Raises:
        InputError: there is no GPU, and this is not a dry run.
    """
    versions = {"python": platform.python_version(), "torch": torch.__version__, "torchvision": torchvision.__version__}
    cpu = {"cpu": torch.backends.cpu.get_cpu_capability(), "cores": len(os.sched_getaffinity(0))}
    if dry_run:
        return {"device": "cpu", **cpu, **versions}
    if not torch.cuda.is_available():
        raise InputError(f"gpu_day: torch {torch.__version__} finds no GPU; give --dry-run to try it on the CPU")
    gpu = torch.cuda.get_device_properties(0)
    libraries = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    memory_gib = round(gpu.total_memory / 2**30, 1)
    capability = f"{gpu.major}.{gpu.minor}"
    return {"device": gpu.name, "memory_gib": memory_gib, "capability": capability, **libraries, **cpu, **versions}


def smoke(*, dry_run: bool) -> Cases:
    """Return cases that train and evaluate every network in every precision, the most used ones first."""
    resnets = [(name, stem) for name in RESNETS for stem in ("imagenet", "cifar")]
    others = [(name, "imagenet") for name in NETWORKS if name not in RESNETS]
    networks = [("small_cnn", "imagenet")] if dry_run else [*resnets[:2], *others, *resnets[2:]]
    size, batch = (_TINY, _TINY) if dry_run else (32, 256)
    # The loss scale of fp16 starts too high; each skipped step halves it.
    settings = partial(settings_of, size=size, batch=batch, steps=16)
    return {
        f"{network} {stem} {precision}": partial(
            train_and_evaluate, settings(network=network, stem=stem, precision=precision)
        )
        for network, stem in networks
        for precision in PRECISIONS
    }


def throughput(*, dry_run: bool, size: int, stem: str, precision: str, workers: Sequence[int] = (1,)) -> Cases:
    """Return cases that compare the training loop with a bare loop on torchvision's ResNet-18.

    Args:
        workers: simulated workers, each with its own BatchNorm groups; the bare loop has one.
    """
    by_batch = partial(
        _by_batch, timing.compare_with_bare, dry_run=dry_run, size=size, stem=stem, precision=precision
    )  # fmt: skip
    return {name: case for count in workers for name, case in by_batch(count).items()}


def graphs(*, dry_run: bool, size: int, stem: str, precision: str) -> Cases:
    """Return cases that compare the training loop with `compile: cuda_graphs` with the same loop without.

    They also time a bare step as one graph: what such a step could gain. Without a GPU there is none.
    """
    by_batch = partial(_by_batch, dry_run=dry_run, size=size, stem=stem, precision=precision)
    bare = {} if dry_run else by_batch(timing.compare_bare_graph)
    cases = {
        **{f"{name}, bare": case for name, case in bare.items()},
        **by_batch(timing.compare_with_graphs),
    }
    return {name: case for name, case in cases.items() if not name.startswith("batch 20480")}


def compiling(*, dry_run: bool, size: int, stem: str, precision: str) -> Cases:
    """Return cases that compare the training loop with `compile: true` with the same loop without."""
    return _by_batch(timing.compare_with_compiled, dry_run=dry_run, size=size, stem=stem, precision=precision)


def bits(*, dry_run: bool) -> Cases:
    """Return cases that check whether a run gives the same weights twice, and after SIGKILL.

    A dry run has all but those that are compiled.
    """
    network, size, batch, workers, steps = "resnet18", 28, 256, 8, 40
    if dry_run:
        network, size, batch, workers, steps = "small_cnn", _TINY, _TINY, _TINY // 2, 16
    base = settings_of(network, size, batch, steps=steps)
    variants: dict[str, TrainSettings] = {precision: replace(base, precision=precision) for precision in PRECISIONS}
    shared = replace(variants["bf16"], simulated_workers=workers)
    variants[f"bf16, exact sums of {workers} workers"] = replace(shared, reduction="exact")
    variants[f"bf16, {workers} workers"] = shared
    adamw: dict[str, Any] = {"optimizer": "adamw", "optimizer_options": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}}
    variants["bf16, AdamW, clipping, weight average"] = replace(
        variants["bf16"], **adamw, clip_norm=1.0, ema_decay=0.9
    )  # fmt: skip
    variants["bf16, compiled"] = replace(variants["bf16"], compile=True)
    variants["bf16, CUDA graphs"] = replace(variants["bf16"], compile="cuda_graphs")
    return {
        name: partial(repeat_and_kill, settings)
        for name, settings in variants.items()
        if not dry_run or not settings.compile
    }


def small_maps(*, dry_run: bool, precision: str) -> Cases:
    """Return cases that compare two forms of ResNet-18's convolutions on maps of 1x1 and 2x2.

    The forms are matrix products and plain convolutions.
    """
    sizes, batches = ([_TINY], [_TINY]) if dry_run else ([28, 16, 32], [4096, 32, 256, 1024])
    plan, precision = (timing.TINY, "fp32") if dry_run else (timing.REAL, precision)
    agreements = {f"{size} px, float64": partial(agree_in_float64, size=size) for size in sizes}
    speeds = {
        f"{size} px, batch {batch}": partial(
            timing.compare_with_plain_convolutions, settings_of("resnet18", size, batch, precision=precision), plan
        )
        for size in sizes
        for batch in batches
    }
    return {**agreements, **speeds}


def train_and_evaluate(settings: TrainSettings) -> Row:
    """Train a few steps on random images, and evaluate."""
    timing.reset_peak_memory()
    with distributed.join_process_group("auto") as world:
        pixels, labels = random_images(2 * settings.batch_size, settings.format.image_size)
        run = train_on(settings, pixels, labels, world=world, log=RunLog.silent())
        images, targets = evaluation_images(pixels, settings.format, world.device), torch.from_numpy(labels)
        result = evaluate(
            run.model, images, targets.to(world.device), batch_size=settings.batch_size, world=world
        )  # fmt: skip
    losses = [record.train_loss for record in run.history]
    return {
        "finite": None not in losses and math.isfinite(result.loss),
        "trained": run.skipped_steps < settings.steps,
        "train_loss": losses[-1],
        "test_loss": result.loss,
        "skipped_steps": run.skipped_steps,
        "peak_gib": timing.peak_gib(),
    }


def agree_in_float64(*, size: int) -> Row:
    """Return the relative distance of logits and gradients between the two forms of ResNet-18's convolutions."""
    with distributed.join_process_group("auto") as world:
        model = build_network("resnet18", N_CLASSES, stem="imagenet", seed=0).to(world.device, torch.float64)
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(8, 3, size, size, generator=generator, dtype=torch.float64)
        images = images.to(world.device).contiguous(memory_format=torch.channels_last)

        def logits_and_gradients() -> Tensor:
            model.zero_grad()
            logits: Tensor = model(images)
            logits.square().sum().backward()
            gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
            return torch.cat([logits.detach().flatten(), *gradients])

        with timing.products_everywhere():
            products = logits_and_gradients()
        with timing.plain_convolutions():
            plain = logits_and_gradients()
    distance = float((products - plain).norm() / plain.norm())
    return {"distance": distance, "agrees": 0 < distance < _FLOAT64_TOLERANCE}


def repeat_and_kill(settings: TrainSettings) -> Row:
    """Run five processes: two that train to the end, one killed between two checkpoints, one that resumes it, and one
    whose steps are not CUDA graphs."""
    kill_after = settings.steps // 2 + 1
    with tempfile.TemporaryDirectory() as name:
        once, again, killed, plain = (Path(name, part) for part in ("once", "again", "killed", "plain"))
        _train_in_process(settings, once)
        _train_in_process(settings, again)
        _train_in_process(settings, killed, kill_after=kill_after)
        saved = Checkpoints(killed).load_latest(print)
        if saved is None or not 0 < saved[0] < kill_after:
            raise RuntimeError(f"killed after step {kill_after}, but there is no checkpoint of an earlier step")
        _train_in_process(settings, killed)
        _train_in_process(settings, plain, captures=False)
        expected, *others = (
            torch.load(folder / "weights.pt", weights_only=True) for folder in (once, again, killed, plain)
        )  # fmt: skip
    digests = [digest_of(weights) for weights in (expected, *others)]
    differences = [(other[key].double() - expected[key].double()).abs().max() for other in others for key in expected]
    return {
        "same_twice": digests[1] == digests[0],
        "same_after_kill": digests[2] == digests[0],
        "same_without_graphs": digests[3] == digests[0],
        "resumed_from_step": saved[0],
        "largest_difference": float(max(differences)),
    }


def train_with_checkpoints(
    settings: TrainSettings, folder: Path, kill_after: int | None, captures: bool = True
) -> None:
    """Train in this process, from the latest checkpoint in `folder` if there is one; write weights.pt there."""
    with distributed.join_process_group("auto") as world:
        pixels, labels = random_images(4 * settings.batch_size, settings.format.image_size)
        checkpointer = Checkpointer(Checkpoints(folder), stop_and_save_flags(), world=world, steps=settings.steps // 8)
        log = _KillingLog(kill_after)
        run = train_on(
            settings, pixels, labels, world=world, log=log, checkpointer=checkpointer, captures=captures
        )  # fmt: skip
        torch.save({name: tensor.cpu() for name, tensor in run.model.state_dict().items()}, folder / "weights.pt")


class _KillingLog(RunLog):
    """A silent log that kills the process after an optimizer step."""

    def __init__(self, step: int | None) -> None:
        super().__init__(None)
        self._step, self._done = step, 0

    @contextmanager
    def progress(self, description: str, total: int, unit: str) -> Iterator[Progress]:  # noqa: ARG002
        yield self

    def update(self, n: int = 1, note: str = "") -> None:  # noqa: ARG002
        self._done += n
        if self._done == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def _train_in_process(
    settings: TrainSettings, folder: Path, kill_after: int | None = None, *, captures: bool = True
) -> None:
    folder.mkdir(exist_ok=True)
    process = start_process(train_with_checkpoints, settings, folder, kill_after, captures)
    process.join()
    expected = 0 if kill_after is None else -signal.SIGKILL
    if process.exitcode != expected:
        raise RuntimeError(f"a training process ended with exit code {process.exitcode} instead of {expected}")


def digest_of(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names and bits; a comparison of numbers would not distinguish -0 and 0."""
    digest = hashlib.sha256()
    for name, tensor in weights.items():
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _by_batch(
    compare: Callable[[TrainSettings, TimingPlan], Row],
    workers: int = 1,
    *,
    dry_run: bool,
    size: int,
    stem: str,
    precision: str,
) -> Cases:
    """Return cases that compare loops on ResNet-18 at each batch size that gives every worker two images."""
    batches, plan = [batch for batch in BATCHES if batch >= 2 * workers], timing.REAL
    if dry_run:
        # Many CPUs take seconds for a step in bf16.
        size, batches, plan, precision, workers = _TINY, [_TINY], timing.TINY, "fp32", min(workers, _TINY // 2)
    base = partial(settings_of, "resnet18", size, stem=stem, precision=precision, simulated_workers=workers)
    suffix = f", {workers} workers" if workers > 1 else ""
    return {f"batch {batch}{suffix}": partial(compare, base(batch), plan) for batch in batches}
