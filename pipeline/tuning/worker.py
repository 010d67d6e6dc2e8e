"""Train a trial for one epoch."""

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
from pipeline.training.cells import LoadedSplits, execute_run
from pipeline.training.checkpointing import Checkpoints, CheckpointScheduler, stop_and_save_flags
from pipeline.training.grid import RunSpec
from pipeline.training.loop import train
from pipeline.training.settings import comm_config_from
from pipeline.training.state import TrainState
from pipeline.tuning.sources import TrialData, load_splits
from pipeline.tuning.trial import TrainValRows, TrialRun

_DIVERGED = "the loss stopped being finite"
_SETTINGS_ERRORS = (InputError, ArithmeticError)
_CUDA_BYTES = 1 << 30  # at least what CUDA and its libraries take for themselves in a process


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochTask:
    """Train `run` to the end of `epoch`, from 1, and judge it.

    Attributes:
        folder: of the trial's checkpoints and results, absolute.
        mark: what the search left in the folder above it.
    """

    run: TrialRun
    epoch: int
    rows: TrainValRows
    source: TrialData
    folder: Path
    mark: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochResult:
    """What an epoch gave.

    Attributes:
        accuracy: on the judged rows, 0 to 1; None if the trial diverged or failed.
        reason: of that.
        seconds: wall time in all.
        switch_seconds: of which went into taking the trial up and laying it down again.
        killed: the process that trained it died.
    """

    accuracy: float | None
    reason: str = ""
    seconds: float
    switch_seconds: float = 0.0
    killed: bool = False


class InfeasibleTrialError(Exception):
    """A trial cannot be trained with its values; the message says why, in the same words every time."""


def train_epoch(task: EpochTask, ranks: World) -> EpochResult:
    """Go on from the trial's last checkpoint to the end of the epoch and classify the judged rows; all ranks call it.

    Raises:
        InfeasibleTrialError: on the rank that found it out.
        InputError: the images are missing, damaged or not those of the search, this process would give other bits, or
            others hold the memory of its GPU.
        Terminated: in a main thread, asked to end; the state is saved.
    """
    start = time.monotonic()
    splits = load_splits(task.source, ranks.device)
    try:
        accuracy, reason, switch_seconds = _train_and_evaluate(task, splits, ranks, start)
    except (DataError, MachineError):
        raise
    except (*_SETTINGS_ERRORS, MemoryError, OSError, RuntimeError) as error:
        if not _caused_by_settings(error):
            raise
        if is_out_of_memory(error):
            _check_gpu_not_shared(ranks)
        said = str(error).splitlines() or [""]
        raise InfeasibleTrialError(f"{type(error).__name__}: {said[0]}") from None
    return EpochResult(
        accuracy=accuracy, reason=reason, seconds=time.monotonic() - start, switch_seconds=switch_seconds
    )  # fmt: skip


def _caused_by_settings(error: Exception) -> bool:
    """What a trial's own settings can bring about. Anything else says nothing of them, and ends the search."""
    return isinstance(error, _SETTINGS_ERRORS) or is_out_of_memory(error)


def _check_gpu_not_shared(ranks: World) -> None:
    """A trial that found the memory taken has not failed by its own settings.

    Raises:
        InputError: other processes, other workers too, hold some of the GPU's.
    """
    device = ranks.device
    if device.type != "cuda":
        return
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    # Of several ranks also what they exchange gradients in, and the process that started them.
    allowed = _CUDA_BYTES * (1 if ranks.count == 1 else 4)
    if others > allowed:
        raise InputError(
            f"{torch.cuda.get_device_name(device)}: out of memory, of which others hold {others / 2**30:.1f} GiB; end "
            "them, or start fewer workers on it, and run the same command again, which goes on"
        )


def _train_and_evaluate(
    task: EpochTask, splits: LoadedSplits, ranks: World, began: float
) -> tuple[float | None, str, float]:
    """Accuracy, the reason where there is none, and the seconds of taking up and laying down.

    Args:
        began: by the monotonic clock, before the images were read.
    """
    settings, recipe, end = task.run.settings, task.run.recipe, task.run.epoch_ends[task.epoch - 1]
    log, last = RunLog.silent(), end == settings.steps
    # One process reads them once for all trials; those that see them otherwise than the last have them made anew.
    began = began if ranks.count > 1 else time.monotonic()
    images = splits.on_device(settings, training=True, device=ranks.device)
    spent = time.monotonic() - began
    if not last:
        to_end = _StopAtEpochEnd(task, ranks)
        with _handling_signals(to_end):
            try:
                train(
                    settings,
                    images,
                    torch.from_numpy(splits.train_labels).to(ranks.device),
                    task.rows.train,
                    ranks=ranks, log=log, title="", micro_batch=recipe.micro_batch, transport=comm_config_from(recipe),
                    pauses=to_end,
                )  # fmt: skip
                return None, _DIVERGED, spent + to_end.switch_seconds
            except _EpochEnded:
                spent += to_end.switch_seconds
    # A run of so many steps, all of which are done, so that its own schedule does not matter: what is left is to
    # make its weights those to evaluate. The last epoch is trained here.
    judging = _Resumed(task, ranks)
    cell = RunSpec(
        arm="", filter_network="", learning_rate=settings.learning_rate, n_train=int(task.rows.train.sum()),
        settings=dataclasses.replace(settings, steps=end),
    )  # fmt: skip
    with _handling_signals(judging):
        result = execute_run(
            cell, splits, task.rows.train, ranks=ranks, log=log, title="", weights=None,
            eval_batch_size=recipe.eval_batch_size, micro_batch=recipe.micro_batch, transport=comm_config_from(recipe),
            pauses=judging,
        )  # fmt: skip
    return result.top1, "" if result.status == "finished" else _DIVERGED, spent + judging.switch_seconds


class _EpochEnded(Exception):  # noqa: N818 - an event, that never leaves this module
    """The run stands at the end of the epoch, and is saved."""


class _Resumed(CheckpointScheduler):
    """`CheckpointScheduler` that take the time from their making until the run has its state back."""

    def __init__(self, task: EpochTask, ranks: World) -> None:
        interval, self._made = task.run.recipe.checkpoint, time.monotonic()
        self._own = Checkpoints(task.folder)
        super().__init__(self._own, stop_and_save_flags(), ranks=ranks, seconds=interval.seconds, steps=interval.steps)
        self._end, self._steps_in_all = task.run.epoch_ends[task.epoch - 1], task.run.settings.steps
        self.switch_seconds = 0.0

    def resume(self, state: TrainState, ranks: World, log: RunLog) -> None:
        super().resume(state, ranks, log)
        self.switch_seconds += time.monotonic() - self._made
        self._check(state)

    def _check(self, state: TrainState) -> None:
        # A run cut short here would have the schedule of a short one.
        assert self._end in (state.step, self._steps_in_all), (state.step, self._end)


class _StopAtEpochEnd(_Resumed):
    """Ends the run at the end of the epoch, its state saved."""

    def _check(self, state: TrainState) -> None:
        # A task that was interrupted after its last step.
        if state.step >= self._end:
            raise _EpochEnded

    def offer(self, state: TrainState, *, local: bool) -> None:
        if state.step < self._end:
            super().offer(state, local=local)
            return
        start = time.monotonic()
        content = state.to_save(local=local)
        if self._ranks.is_main:
            self._own.save(state.step, content)
        # A rank that ended while another is still saving would have that one ended, too.
        distributed.barrier()
        self.switch_seconds += time.monotonic() - start
        raise _EpochEnded


@contextmanager
def _handling_signals(pauses: CheckpointScheduler) -> Iterator[None]:
    """Signals reach the main thread alone; Dask's workers run tasks in others."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        with pauses.watching():
            yield
    except Exception:
        # An epoch or a trial that ended in the meantime has not told the search to end.
        if pauses.stop_requested:
            signal.raise_signal(signal.SIGTERM)
        raise
