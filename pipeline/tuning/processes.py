"""Train the next epoch of a trial, on one process or on several ranks that torchrun starts for the epoch."""

import dataclasses
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, get_type_hints

from pipeline import distributed
from pipeline.artifacts.files import read_json, write_json
from pipeline.errors import InputError, Terminated, fix_hint
from pipeline.processes import freeze_imported_objects, set_parent_death_signal
from pipeline.training.checkpointing import Checkpoints
from pipeline.tuning.sources import check_mark
from pipeline.tuning.worker import EpochResult, EpochTask, InfeasibleTrialError, train_epoch

RANKS = "ranks"
"""File in a trial's folder on which its ranks hold a shared lock."""

_MODULE = "pipeline.tuning.processes"
_SIGNAL_EXIT_OFFSET = 128  # `launch` adds it to the signal
_BAD_INPUT = 2


def train_next_epoch(task: EpochTask) -> EpochResult:
    """Train a trial to the end of an epoch, save its state, and evaluate the validation rows.

    Any process that sees the files can call it. The last epoch, or one in which the trial fails, leaves no state. An
    interrupted task resumes from the trial's last checkpoint. A task whose result was not recorded returns it again.

    Raises:
        InputError: the images are missing, damaged or not those of the search; this process does not share its folder
            or would give other bits; other processes use the memory of its GPU; or the recorded result is damaged.
        Terminated: SIGTERM or SIGINT in the main thread; the state is saved.
    """
    start, path = time.monotonic(), task.folder / f"epoch-{task.epoch:04d}.json"
    check_mark(task.folder.parent, task.mark)
    with _exclusive_folder(task.folder):
        if path.exists():
            result = _recorded(path)
        else:
            result = _train_timed(task, start)
            if not result.killed:
                write_json(path, dataclasses.asdict(result))
        if not result.killed and (result.accuracy is None or task.epoch == len(task.run.epoch_ends)):
            Checkpoints(task.folder).clear()
    return result


def _recorded(path: Path) -> EpochResult:
    """Return the result that an earlier task wrote."""
    kinds = get_type_hints(EpochResult)
    with suppress(InputError, TypeError, AttributeError):  # JSON of any kind
        values = read_json(path)
        is_result = values.keys() == kinds.keys() and all(isinstance(values[key], kinds[key]) for key in kinds)
        if is_result and (values["accuracy"] is None or 0 <= values["accuracy"] <= 1):
            return EpochResult(**values)
    raise InputError(f"{path}: not the result of an epoch; delete it and run the same command again")


def _train_timed(task: EpochTask, start: float) -> EpochResult:
    try:
        result = _train_task(task)
    except InfeasibleTrialError as error:
        result = EpochResult(accuracy=None, reason=str(error), seconds=0.0)
    # The time to start processes counts as part of restoring the trial.
    seconds = time.monotonic() - start
    switch_seconds = result.switch_seconds + seconds - result.seconds if result.seconds else 0.0
    return dataclasses.replace(result, seconds=seconds, switch_seconds=switch_seconds)


def _train_task(task: EpochTask) -> EpochResult:
    if task.run.processes > 1:
        return train_on_ranks(task)
    with distributed.join_process_group(task.run.threads) as world:
        return train_epoch(task, world)


@contextmanager
def _exclusive_folder(folder: Path) -> Iterator[None]:
    """Wait for processes that outlived an earlier search: two would write the same checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with (folder / RANKS).open("a+") as ranks_file:
            fcntl.flock(ranks_file, fcntl.LOCK_EX)
        yield


def train_on_ranks(task: EpochTask) -> EpochResult:
    """Run `train_epoch` on `task.run.processes` processes of this machine.

    Raises:
        The error of `train_epoch` on one of them; Terminated also if they were asked to stop, in a main thread.
        RuntimeError: one failed and printed its error on stderr.
    """
    with tempfile.TemporaryDirectory(dir=task.folder) as folder:
        task_file = Path(folder) / "task.pickle"
        task_file.write_bytes(pickle.dumps(task))
        launcher = subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(task_file), str(os.getpid())], stdin=subprocess.DEVNULL,
            # Ctrl-C in a terminal must reach the ranks once, by the signal below.
            start_new_session=True,
        )  # fmt: skip
        try:
            code = launcher.wait()
        except BaseException:
            # On a signal too. The launcher forwards SIGTERM to the ranks, which save their state.
            launcher.terminate()
            launcher.wait()
            raise
        outcomes = [pickle.loads(path.read_bytes()) for path in sorted(Path(folder).glob("outcome-*.pickle"))]
    if code == 0:
        (result,) = outcomes
        assert isinstance(result, EpochResult), result
        return result
    # Errors that end the search come first, then those of the lowest rank.
    failures = sorted((outcome for outcome in outcomes if isinstance(outcome, Exception)), key=_is_caused_by_settings)
    if failures:
        raise failures[0]
    main_thread = threading.current_thread() is threading.main_thread()
    if code == os.EX_TEMPFAIL and main_thread:
        raise Terminated("the results of the trials are kept")
    if code == os.EX_TEMPFAIL or code >= _SIGNAL_EXIT_OFFSET or code < 0:
        # A worker whose node stops is lost to the search, like a killed one.
        reason = "a process that trained it died; give it more memory, or train on fewer"
        return EpochResult(accuracy=None, reason=reason, seconds=0.0, killed=True)
    raise RuntimeError(f"trial {task.folder.name}: a process that trained it ended with {code}; see its error above")


def _is_caused_by_settings(failure: Exception) -> bool:
    return isinstance(failure, InfeasibleTrialError)


def _main(argv: Sequence[str]) -> int:
    """Start the ranks, or run one."""
    task_file, parent = Path(argv[0]), int(argv[1])
    task: EpochTask = pickle.loads(task_file.read_bytes())
    freeze_imported_objects()
    if not distributed.launched_by_torchrun():
        set_parent_death_signal(signal.SIGKILL)
        # A parent that died earlier sends no signal.
        if os.getppid() != parent:
            return os.EX_TEMPFAIL
        return distributed.launch(_MODULE, argv, task.run.processes)
    # Locked until this process ends, since the process that holds the folder's lock may be killed.
    # Opened for reading too, which NFS requires for a shared lock.
    with (task.folder / RANKS).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        return _train(task, task_file)


def _train(task: EpochTask, task_file: Path) -> int:
    rank = "unknown"
    try:
        with distributed.join_process_group(task.run.threads) as world:
            rank = f"{world.rank:04d}"
            try:
                result = train_epoch(task, world)
            except (InfeasibleTrialError, InputError, OSError) as error:
                # Written before the session makes all ranks but the first wait.
                _write_result(task_file, rank, error)
                raise
            if world.is_main:
                _write_result(task_file, rank, result)
    except Terminated:
        return os.EX_TEMPFAIL
    except (InfeasibleTrialError, InputError, OSError) as error:
        if rank == "unknown":
            _write_result(task_file, rank, error)
        elif isinstance(error, OSError):
            # On a full disk the result file may be missing too.
            print(f"error: {fix_hint(error) or error}", file=sys.stderr)
        return _BAD_INPUT
    return 0


def _write_result(task_file: Path, rank: str, result: Any) -> None:
    """Write a pickle atomically."""
    path = task_file.with_name(f"outcome-{rank}.pickle")
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(pickle.dumps(result))
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
