"""Train a trial for one epoch in this process, or in the ranks of `pipeline.tuning.processes`."""

import dataclasses
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from pipeline import distributed
from pipeline.distributed import World
from pipeline.errors import DataError, InputError, MachineError, is_out_of_memory
from pipeline.run_log import RunLog
from pipeline.runs.arm_rows import TrainRows
from pipeline.runs.checkpoints import RunCheckpoints
from pipeline.runs.execution import LoadedSplits, execute_run
from pipeline.runs.grid import RunSpec
from pipeline.training.checkpointing import Checkpointer, stop_and_save_flags
from pipeline.training.effective_settings import comm_config_from
from pipeline.training.loop import TrainData, train
from pipeline.training.run_options import RunOptions
from pipeline.training.state import TrainState
from pipeline.tuning.sources import TrialData, load_splits
from pipeline.tuning.trial import TrainValRows, TrialRun

_DIVERGED = "the loss stopped being finite"
_SETTINGS_ERRORS = (InputError, ArithmeticError)
_CUDA_BYTES = 1 << 30  # upper bound of what CUDA and its libraries allocate in a process


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochTask:
    """Task to train `run` to the end of `epoch`, from 1, and evaluate it.

    Attributes:
        run: of the trial.
        epoch: number of the epoch, from 1.
        rows: training and validation images.
        source: where to read the images.
        folder: absolute folder of the trial's checkpoints and results.
        mark: that the search wrote to the parent of `folder`, see `write_mark`.
    """

    run: TrialRun
    epoch: int
    rows: TrainValRows
    source: TrialData
    folder: Path
    mark: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochResult:
    """Result of an epoch.

    Attributes:
        accuracy: on the validation rows, 0 to 1; None if the trial diverged or failed.
        reason: of the failure.
        seconds: total wall time.
        switch_seconds: the part of it that restored and saved the trial.
        killed: whether the process that trained it died.
    """

    accuracy: float | None
    reason: str = ""
    seconds: float
    switch_seconds: float = 0.0
    killed: bool = False


class InfeasibleTrialError(Exception):
    """A trial cannot be trained with its values. The message gives the reason and is always the same."""


def train_epoch(task: EpochTask, world: World) -> EpochResult:
    """Train from the last checkpoint to the end of the epoch and evaluate the validation rows; all ranks call it.

    Raises:
        InfeasibleTrialError: on the rank that failed.
        InputError: the images are missing, damaged or not those of the search; this process would give other bits; or
            other processes use the memory of its GPU.
        Terminated: SIGTERM or SIGINT in a main thread; the state is saved.
    """
    start = time.monotonic()
    splits = load_splits(task.source, world.device)
    try:
        accuracy, reason, switch_seconds = _train_and_evaluate(task, splits, world, start)
    except (DataError, MachineError):
        raise
    except (*_SETTINGS_ERRORS, MemoryError, OSError, RuntimeError) as error:
        if not _caused_by_settings(error):
            raise
        if is_out_of_memory(error):
            _check_gpu_not_shared(world)
        lines = str(error).splitlines() or [""]
        raise InfeasibleTrialError(f"{type(error).__name__}: {lines[0]}") from None
    return EpochResult(
        accuracy=accuracy, reason=reason, seconds=time.monotonic() - start, switch_seconds=switch_seconds
    )  # fmt: skip


def _caused_by_settings(error: Exception) -> bool:
    """Return whether a trial's settings can cause this error. Any other error ends the search."""
    return isinstance(error, _SETTINGS_ERRORS) or is_out_of_memory(error)


def _check_gpu_not_shared(world: World) -> None:
    """Check that no other process uses the GPU, which could have caused the out-of-memory error.

    Raises:
        InputError: other processes, including other workers, use memory of the GPU.
    """
    device = world.device
    if device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    # Several ranks also have buffers for gradients, and so has the process that started them.
    allowed = _CUDA_BYTES * (1 if world.size == 1 else 4)
    if others > allowed:
        raise InputError(
            f"{torch.cuda.get_device_name(device)}: out of memory; other processes use {others / 2**30:.1f} GiB; end "
            "them, or start fewer workers on it, and run the same command again to resume"
        )


def _train_and_evaluate(
    task: EpochTask, splits: LoadedSplits, world: World, start: float
) -> tuple[float | None, str, float]:
    """Return the accuracy, the reason of a failure, and the seconds of restoring and saving.

    Args:
        start: monotonic time before the images were read.
    """
    settings, recipe, end = task.run.settings, task.run.recipe, task.run.epoch_ends[task.epoch - 1]
    log, last = RunLog.silent(), end == settings.steps
    # A single process reads the images once for all trials. A trial with other image settings prepares them again.
    start = start if world.size > 1 else time.monotonic()
    images = splits.for_training(settings, device=world.device)
    spent = time.monotonic() - start
    options = RunOptions(micro_batch=recipe.micro_batch, comm=comm_config_from(recipe))
    if not last:
        stopper = _StopAtEpochEnd(task, world)
        with _handling_signals(stopper):
            try:
                train(
                    settings,
                    TrainData(images, torch.from_numpy(task.rows.labels).to(world.device), task.rows.train),
                    world=world, log=log, options=dataclasses.replace(options, checkpointer=stopper),
                )  # fmt: skip
                return None, _DIVERGED, spent + stopper.switch_seconds
            except _EpochEnded:
                spent += stopper.switch_seconds
    # Two cases come here. (a) The last epoch: this trains and evaluates it. (b) An earlier epoch: the block above has
    # trained and saved it, so with `steps=end` this run restores the state, takes no step, and evaluates. Its learning
    # rates would be those of a shorter run, but no step uses them.
    resumed = _TimedCheckpointer(task, world)
    run_spec = RunSpec(
        arm="", filter_network="", learning_rate=settings.learning_rate, n_train=int(task.rows.train.sum()),
        settings=dataclasses.replace(settings, steps=end),
    )  # fmt: skip
    with _handling_signals(resumed):
        result = execute_run(
            run_spec, splits, TrainRows(mask=task.rows.train, labels=task.rows.labels), world=world, log=log,
            weights=None,
            eval_batch_size=recipe.eval_batch_size, options=dataclasses.replace(options, checkpointer=resumed),
        )  # fmt: skip
    return result.top1, "" if result.status == "finished" else _DIVERGED, spent + resumed.switch_seconds


class _EpochEnded(Exception):  # noqa: N818 - an event that never leaves this module
    """The run is at the end of the epoch, and is saved."""


class _TimedCheckpointer(Checkpointer):
    """`Checkpointer` that measures the time from its creation until the run has restored its state."""

    def __init__(self, task: EpochTask, world: World) -> None:
        interval, self._created = task.run.recipe.checkpoint, time.monotonic()
        self._own = RunCheckpoints(task.folder, f"{task.folder.parent.parent.name}/{task.folder.name}")
        super().__init__(self._own, stop_and_save_flags(), world=world, seconds=interval.seconds, steps=interval.steps)
        self._end, self._total_steps = task.run.epoch_ends[task.epoch - 1], task.run.settings.steps
        self.switch_seconds = 0.0

    def resume(self, state: TrainState, log: RunLog) -> None:
        super().resume(state, log)
        self.switch_seconds += time.monotonic() - self._created
        self._check(state)

    def _check(self, state: TrainState) -> None:
        # A run that trains to here would have the schedule of a shorter run.
        assert self._end in (state.step, self._total_steps), (state.step, self._end)


class _StopAtEpochEnd(_TimedCheckpointer):
    """`_TimedCheckpointer` that saves the state and ends the run at the end of the epoch."""

    def _check(self, state: TrainState) -> None:
        # The task was interrupted after its last step.
        if state.step >= self._end:
            raise _EpochEnded

    def maybe_save(self, state: TrainState) -> None:
        if state.step < self._end:
            super().maybe_save(state)
            return
        start = time.monotonic()
        content = state.state_dict()
        if self._world.is_main:
            self._own.save(state.step, content)
        # A rank that ends while another saves would end the other one too.
        distributed.barrier()
        self.switch_seconds += time.monotonic() - start
        raise _EpochEnded


@contextmanager
def _handling_signals(checkpointer: Checkpointer) -> Iterator[None]:
    """Handle signals in the main thread, the only one that they reach. Dask's workers run tasks in others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        with checkpointer.stop_at_signals():
            yield
    except Exception:
        # Every error passes on. If a signal arrived too, raise SIGTERM again: the end of an epoch or of a trial does
        # not end the search.
        if checkpointer.stop_requested:
            signal.raise_signal(signal.SIGTERM)
        raise
