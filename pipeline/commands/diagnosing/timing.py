"""Real steps of a study's training, timed: as they are, without exchange, and with synthetic images."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
from pipeline.commands.diagnosing.bottleneck import StepTimes
from pipeline.datasets.sources import SyntheticImages, TrainingImages
from pipeline.distributed import CommConfig, World
from pipeline.run_log import Progress, RunLog
from pipeline.simulator.job import elapsed_seconds, record_event
from pipeline.training.loop import RunOptions, TrainData, train
from pipeline.training.settings import TrainSettings

ROUNDS = 8
"""Of which the second smallest and the second largest value cover the median with 93 %."""
# First uses, and batches that were prepared before the clock ran.
_WARM_UP = 3
_MIN_STEPS, _MAX_STEPS = 3, 50
_NEVER = 1_000_000_000
_NOT_COMPRESSED: dict[str, Any] = {"compression": "none", "powersgd_rank": None, "workers_per_node": None}


@dataclass(frozen=True, kw_only=True)
class Training:
    """What `training.loop.train` is given for a cell; `members`: (N,) bool."""

    settings: TrainSettings
    images: TrainingImages
    labels: Tensor
    members: NDArray[np.bool_]
    ranks: World
    micro_batch: int | Literal["auto"]
    comm: CommConfig | None = None


class _AllStepsTimed(Exception):  # noqa: N818 - no error
    """All steps that were asked for are timed."""


class _StepClock(RunLog):
    """Hears of each step from the trainer's own progress, and ends the run by an exception after the last."""

    def __init__(self, n_steps: int, device: torch.device, on_step: Callable[[], object]) -> None:
        super().__init__(None)
        self._n_steps, self._device, self._on_step = n_steps, device, on_step
        self.moments: list[Any] = []

    @contextmanager
    def progress(self, description: str, total: int, unit: str) -> Iterator[Progress]:  # noqa: ARG002 - as others need it
        """Counts nothing that is shown."""
        yield self

    def update(self, n: int = 1, note: str = "") -> None:  # noqa: ARG002 - as others need it
        """First at the start of the run, then after each step."""
        self.moments.append(record_event(self._device))
        if len(self.moments) > 1:
            self._on_step()
        if len(self.moments) > self._n_steps:
            raise _AllStepsTimed


def step_seconds(training: Training, n_steps: int, on_step: Callable[[], object] = lambda: None) -> NDArray[np.float64]:
    """(n_steps,) of this rank, after a few that do not count; all ranks call it.

    Args:
        on_step: called after each step, those that do not count too.
    """
    ranks = training.ranks
    clock = _StepClock(_WARM_UP + n_steps, ranks.device, on_step)
    # Longer than is run: the trainer adds up losses over ranks after each twentieth of a run, and nowhere in here.
    steps = max(training.settings.steps, 20 * (_WARM_UP + n_steps + 1))
    distributed.barrier()
    with suppress(_AllStepsTimed):
        train(
            # Steps that sample the noise of gradients or measure the accuracy are none like the others, nor are those
            # of smaller batches before.
            replace(
                training.settings, steps=steps, batch_stages=(), noise_scale_steps=None, accuracy_steps=None,
                accuracy_examples=None,
            ),
            TrainData(training.images, training.labels, training.members),
            ranks=ranks, log=clock,
            options=RunOptions(micro_batch=training.micro_batch, comm=training.comm or CommConfig()),
        )  # fmt: skip
    if ranks.device.type == "cuda":
        torch.cuda.synchronize(ranks.device)
    counted = clock.moments[_WARM_UP:]
    return np.array([elapsed_seconds(*pair) for pair in pairwise(counted)])


def without_communication(training: Training) -> Training:
    """Each rank steps alone on the same images in the same BatchNorm groups: post-local SGD that never averages.

    Of `reduction: tree` it leaves out the order of its sums too, so that this arithmetic counts as communication.
    """
    settings, count = training.settings, training.ranks.size
    parts = worker_slices(settings.batch_size, settings.simulated_workers, settings.bn_group)
    local = replace(
        settings,
        simulated_workers=count,
        bn_group=parts[0].group_sizes[0],
        reduction="ddp",
        local_from_step=0,
        local_period=_NEVER,
        **_NOT_COMPRESSED,
    )
    # A tree passes one simulated worker at a time.
    one_worker = max(part.size for part in parts)
    return replace(
        training, settings=local, micro_batch=one_worker if settings.reduction == "tree" else training.micro_batch
    )


def with_synthetic_images(training: Training) -> Training:
    """Nothing is read, augmented or copied to the device."""
    crop_size = training.settings.format.crop_size
    images = SyntheticImages(len(training.images), crop_size=crop_size, device=training.ranks.device)
    return replace(training, images=images)


def one_rank_share(training: Training, count: int) -> Training:
    """What the first of `count` ranks does in a step, as the whole of a run on this process alone."""
    settings = training.settings
    parts = rank_slices(
        worker_slices(settings.batch_size, settings.simulated_workers, settings.bn_group), rank=0, ranks=count
    )
    share = replace(
        settings, batch_size=sum(part.size for part in parts), simulated_workers=len(parts), local_from_step=None,
        **_NOT_COMPRESSED,
    )  # fmt: skip
    return replace(training, settings=share)


def measure(training: Training, seconds: float) -> StepTimes:
    """Rounds of all ways in turn, so that a machine that slows down slows down each; all ranks return the same.

    Post-local SGD is measured in its local phase, over whole periods from one average to the next. Of a period that is
    longer than there is time for, as many steps are taken and its average's part is spread over all of them.

    Args:
        seconds: to spend on the steps, roughly; starting each run comes on top, and a few steps are always taken.
    """
    if in_phase := training.settings.local_from_step is not None:
        training = replace(training, settings=replace(training.settings, local_from_step=0))
    if training.ranks.size == 1:
        ways = [training, with_synthetic_images(training)]  # nobody to exchange with
    else:
        alone = without_communication(training)
        ways = [training, alone, with_synthetic_images(alone)]
    n_steps = steps_in(training, seconds / ROUNDS / len(ways))
    period = min(training.settings.local_period, n_steps) if in_phase else 1
    if in_phase:
        ways[0] = replace(training, settings=replace(training.settings, local_period=period))
    steps = [n_steps // period * period, *[n_steps] * (len(ways) - 1)]
    found = [
        [distributed.all_gather(step_seconds(way, n)) for way, n in zip(ways, steps, strict=True)]
        for _ in range(ROUNDS)
    ]
    # Ways first, each by rounds, ranks and steps.
    full, *others, synthetic = map(np.array, zip(*found, strict=True))
    local = others[0] if others else full
    if in_phase:
        without = local.mean(axis=-1, keepdims=True)
        full = without + (full - without) * (period / training.settings.local_period)
    return StepTimes(full=full, local=local, synthetic=synthetic)


def steps_in(training: Training, seconds: float) -> int:
    """Steps to count in a run of so many seconds, by a first run of a few; the same on all ranks."""
    slowest = max(float(np.median(own)) for own in distributed.all_gather(step_seconds(training, _MIN_STEPS)))
    return int(np.clip(seconds / slowest - _WARM_UP, _MIN_STEPS, _MAX_STEPS))


def trace(training: Training, path: Path) -> None:
    """Write what one step does, operation by operation, for chrome://tracing or Perfetto; a file of this rank."""
    path.parent.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU]
    if training.ranks.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=_WARM_UP, active=1, repeat=1),
        acc_events=True,
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
    ) as profiler:
        step_seconds(training, 1, profiler.step)
