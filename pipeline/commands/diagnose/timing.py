"""Time steps of a study's training: unchanged, without exchange of gradients, and with synthetic images."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, schedule

from pipeline import distributed
from pipeline.batching import rank_slices, worker_slices
from pipeline.commands.diagnose.bottleneck import StepTimes
from pipeline.datasets.sources import SyntheticImages, TrainingImages
from pipeline.distributed import CommConfig, World
from pipeline.errors import explain_out_of_memory
from pipeline.run_log import Progress, RunLog
from pipeline.simulator.job import elapsed_seconds, record_event
from pipeline.training.loop import TrainData, train
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import TrainSettings

ROUNDS = 8
"""Rounds; the second smallest and the second largest of 8 values cover the median with 93 %."""
# Steps of first use, and those whose batches were prepared before the clock started.
_WARM_UP = 3
_MIN_STEPS, _MAX_STEPS = 3, 50
_NEVER = 1_000_000_000
_NOT_COMPRESSED: dict[str, Any] = {"compression": "none", "powersgd_rank": None, "workers_per_node": None}


@dataclass(frozen=True, kw_only=True)
class Training:
    """Arguments of `training.loop.train` for a run.

    Attributes:
        train_mask: (N,) bool, the images to train on.
        captures: a GPU may replay the steps of one process as graphs; no fair comparison with those of several.
    """

    settings: TrainSettings
    images: TrainingImages
    labels: Tensor
    train_mask: NDArray[np.bool_]
    world: World
    micro_batch: int | Literal["auto"]
    comm: CommConfig | None = None
    captures: bool = True


class _AllStepsTimed(Exception):  # noqa: N818 - not an error
    """Ends a run after its last timed step."""


class _StepClock(RunLog):
    """Times each step through the trainer's progress, and ends the run by an exception after the last."""

    def __init__(self, n_steps: int, device: torch.device, on_step: Callable[[], object]) -> None:
        super().__init__(None)
        self._n_steps, self._device, self._on_step = n_steps, device, on_step
        self.moments: list[Any] = []

    @contextmanager
    def progress(self, description: str, total: int, unit: str) -> Iterator[Progress]:  # noqa: ARG002 - as RunLog
        """Yield this clock, which shows nothing."""
        yield self

    def update(self, n: int = 1, note: str = "") -> None:  # noqa: ARG002 - signature of RunLog
        """Record a moment: at the start of the run, then after each step."""
        self.moments.append(record_event(self._device))
        if len(self.moments) > 1:
            self._on_step()
        if len(self.moments) > self._n_steps:
            raise _AllStepsTimed


def step_seconds(training: Training, n_steps: int, on_step: Callable[[], object] = lambda: None) -> NDArray[np.float64]:
    """Return (n_steps,) seconds of steps on this rank, after a few warm-up steps. All ranks call it.

    Args:
        n_steps: steps to time.
        on_step: called after each step, including warm-up steps.
    """
    world = training.world
    clock = _StepClock(_WARM_UP + n_steps, world.device, on_step)
    # More steps than are run: the trainer reduces losses over ranks after each twentieth of a run, outside these steps.
    steps = max(training.settings.steps, 20 * (_WARM_UP + n_steps + 1))
    distributed.barrier()
    with _explain_memory(training), suppress(_AllStepsTimed):
        train(
            # Without steps that differ: those that sample gradient noise or measure accuracy, or have smaller batches.
            replace(
                training.settings, steps=steps, batch_stages=(), noise_scale_steps=None, accuracy_steps=None,
                accuracy_examples=None,
            ),
            TrainData(training.images, training.labels, training.train_mask),
            world=world, log=clock,
            options=RunOptions(
                micro_batch=training.micro_batch, comm=training.comm or CommConfig(),
                graph_capture="auto" if training.captures else None,
            ),
        )  # fmt: skip
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    timed = clock.moments[_WARM_UP:]
    return np.array([elapsed_seconds(*pair) for pair in pairwise(timed)])


def _explain_memory(training: Training) -> AbstractContextManager[None]:
    """Name the command's own setting where the trainer's messages, of a study's settings, do not."""
    batch = training.settings.batch_size
    return explain_out_of_memory(
        f"--batch-size {batch}: steps of so many images do not fit the memory; give a smaller one of the study"
    )


def without_communication(training: Training) -> Training:
    """Return a training in which ranks do not communicate: post-local SGD that never averages.

    Each rank takes the same images in the same BatchNorm groups. `reduction: exact` also loses its sums in float64, so
    that this arithmetic counts as communication.
    """
    settings, world_size = training.settings, training.world.size
    slices = worker_slices(settings.batch_size, settings.simulated_workers, settings.bn_group)
    local = replace(
        settings,
        simulated_workers=world_size,
        bn_group=slices[0].group_sizes[0],
        reduction="ddp",
        local_from_step=0,
        local_period=_NEVER,
        **_NOT_COMPRESSED,
    )
    # With `exact` a micro-batch is one simulated worker.
    one_worker = max(one.size for one in slices)
    return replace(
        training,
        settings=local,
        captures=False,
        micro_batch=one_worker if settings.reduction == "exact" else training.micro_batch,
    )


def with_synthetic_images(training: Training) -> Training:
    """Return a training without reading, augmenting or copying images to the device."""
    crop_size = training.settings.format.crop_size
    with _explain_memory(training):
        images = SyntheticImages(len(training.images), crop_size=crop_size, device=training.world.device)
    return replace(training, images=images)


def one_rank_share(training: Training, world_size: int) -> Training:
    """Return the first rank's share of a training on `world_size` ranks, as a training of one process."""
    settings = training.settings
    slices = rank_slices(
        worker_slices(settings.batch_size, settings.simulated_workers, settings.bn_group), rank=0, world_size=world_size
    )
    share = replace(
        settings, batch_size=sum(one.size for one in slices), simulated_workers=len(slices), local_from_step=None,
        **_NOT_COMPRESSED,
    )  # fmt: skip
    return replace(training, settings=share, captures=False)


def measure(training: Training, seconds: float, on_round: Callable[[], None] = lambda: None) -> StepTimes:
    """Time all variants in turn, round by round, so that a machine that slows down slows all of them.

    Post-local SGD is measured in its local phase, over complete periods from one average to the next. Of a longer
    period as many steps are taken as fit into the time, and the time of the average is spread over the period.

    Args:
        training: the variant without changes.
        seconds: approximate time for the steps, without starting the runs. A few steps are always taken.
        on_round: called after each of the `ROUNDS`.

    Returns:
        The same times on all ranks.
    """
    if local_phase := training.settings.local_from_step is not None:
        training = replace(training, settings=replace(training.settings, local_from_step=0))
    if training.world.size == 1:
        variants = [training, with_synthetic_images(training)]  # no exchange
    else:
        local_training = without_communication(training)
        variants = [training, local_training, with_synthetic_images(local_training)]
    n_steps = steps_in(training, seconds / ROUNDS / len(variants))
    period = min(training.settings.local_period, n_steps) if local_phase else 1
    if local_phase:
        variants[0] = replace(training, settings=replace(training.settings, local_period=period))
    steps = [n_steps // period * period, *[n_steps] * (len(variants) - 1)]
    rounds = []
    for _ in range(ROUNDS):
        rounds.append(
            [distributed.all_gather_object(step_seconds(*each)) for each in zip(variants, steps, strict=True)]
        )
        on_round()
    # For each variant (rounds, ranks, steps).
    full, *others, synthetic = map(np.array, zip(*rounds, strict=True))
    local = others[0] if others else full
    if local_phase:
        local_mean = local.mean(axis=-1, keepdims=True)
        full = local_mean + (full - local_mean) * (period / training.settings.local_period)
    return StepTimes(full=full, local=local, synthetic=synthetic)


def steps_in(training: Training, seconds: float) -> int:
    """Return the number of timed steps that fit into `seconds`, from a first run of a few; the same on all ranks."""
    slowest = max(
        float(np.median(times)) for times in distributed.all_gather_object(step_seconds(training, _MIN_STEPS))
    )
    return int(np.clip(seconds / slowest - _WARM_UP, _MIN_STEPS, _MAX_STEPS))


def trace(training: Training, path: Path) -> None:
    """Write the operations of one step of this rank, for chrome://tracing or Perfetto."""
    path.parent.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU]
    if training.world.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=_WARM_UP, active=1, repeat=1),
        acc_events=True,
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
    ) as profiler:
        step_seconds(training, 1, profiler.step)
