"""Train a trial on several processes."""

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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline import distributed
from pipeline.artifacts.files import read_json, write_json
from pipeline.errors import InputError, Terminated, fix_hint
from pipeline.processes import set_parent_death_signal
from pipeline.training.checkpointing import Checkpoints
from pipeline.tuning.sources import check_mark
from pipeline.tuning.worker import EpochResult, EpochTask, InfeasibleTrialError, train_epoch

# An epoch of a trial on several processes of one machine, which torchrun starts and which are gone afterwards.


RANKS = "ranks"
"""File in a trial's folder on which its ranks have a shared lock."""

_MODULE = "pipeline.tuning.processes"
_SIGNAL_EXIT_OFFSET = 128  # `launch` adds it to the signal
_BAD_INPUT = 2


def train_on_ranks(task: EpochTask) -> EpochResult:
    """As `train_epoch`, on `task.run.processes` processes.

    Raises:
        What `train_epoch` raises on one of them; Terminated too where they were asked to end, in a main thread.
        RuntimeError: one failed and has said why on stderr.
    """
    with tempfile.TemporaryDirectory(dir=task.folder) as folder:
        given = Path(folder) / "task.pickle"
        given.write_bytes(pickle.dumps(task))
        launcher = subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(given), str(os.getpid())], stdin=subprocess.DEVNULL
        )
        try:
            code = launcher.wait()
        except BaseException:
            # SIGTERM is passed on to the ranks, which save their state.
            launcher.terminate()
            launcher.wait()
            raise
        left = [pickle.loads(path.read_bytes()) for path in sorted(Path(folder).glob("outcome-*.pickle"))]
    if code == 0:
        (result,) = left
        assert isinstance(result, EpochResult), result
        return result
    # What ends the search goes first; then the word of the lowest rank.
    failures = sorted((found for found in left if isinstance(found, Exception)), key=_is_caused_by_settings)
    if failures:
        raise failures[0]
    main_thread = threading.current_thread() is threading.main_thread()
    if code == os.EX_TEMPFAIL and main_thread:
        raise Terminated("what the trials have reached is kept")
    if code == os.EX_TEMPFAIL or code >= _SIGNAL_EXIT_OFFSET or code < 0:
        # A worker whose node is asked to end is lost to the search, as one that was killed.
        reason = "a process that trained it died; give it more memory, or train on fewer"
        return EpochResult(accuracy=None, reason=reason, seconds=0.0, killed=True)
    raise RuntimeError(f"trial {task.folder.name}: a process that trained it ended with {code}; it said why above")


def _is_caused_by_settings(failure: Exception) -> bool:
    return isinstance(failure, InfeasibleTrialError)


def _main(argv: Sequence[str]) -> int:
    """Start the ranks, or be one."""
    given, asking = Path(argv[0]), int(argv[1])
    task: EpochTask = pickle.loads(given.read_bytes())
    if not distributed.launched():
        set_parent_death_signal(signal.SIGKILL)
        # The signal does not come if it died before.
        if os.getppid() != asking:
            return os.EX_TEMPFAIL
        return distributed.launch(_MODULE, argv, task.run.processes)
    # Until this process ends: who kept the lock may have been killed.
    # For reading too: NFS gives a shared lock on nothing else.
    with (task.folder / RANKS).open("a+") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        return _train(task, given)


def _train(task: EpochTask, given: Path) -> int:
    rank = "unknown"
    try:
        with distributed.session(task.run.threads) as ranks:
            rank = f"{ranks.rank:04d}"
            try:
                result = train_epoch(task, ranks)
            except (InfeasibleTrialError, InputError, OSError) as error:
                # Before the session makes all but the first wait.
                _write_result(given, rank, error)
                raise
            if ranks.is_main:
                _write_result(given, rank, result)
    except Terminated:
        return os.EX_TEMPFAIL
    except (InfeasibleTrialError, InputError, OSError) as error:
        if rank == "unknown":
            _write_result(given, rank, error)
        elif isinstance(error, OSError):
            # On a full disk what it found may not have been left either.
            print(f"error: {fix_hint(error) or error}", file=sys.stderr)
        return _BAD_INPUT
    return 0


def _write_result(given: Path, rank: str, found: Any) -> None:
    """Whole or not at all."""
    place = given.with_name(f"outcome-{rank}.pickle")
    own = place.with_suffix(f".{os.getpid()}")
    own.write_bytes(pickle.dumps(found))
    own.replace(place)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))


# The next epoch of a trial: a task for any process that sees the files.


def train_next_epoch(task: EpochTask) -> EpochResult:
    """Go on to the end of an epoch, whose state is then on the disk, and classify the judged rows.

    The last epoch, or one in which the trial fails, leaves no state behind. A task that was interrupted goes on at the
    trial's last checkpoint, and one whose result nobody has taken in gives it again.

    Raises:
        InputError: the images are missing, damaged or not those of the search, this process does not share its folder
            or would give other bits, or others hold the memory of its GPU.
        Terminated: this process, in its main thread, was asked to end; the state is saved.
    """
    start, path = time.monotonic(), task.folder / f"epoch-{task.epoch:04d}.json"
    check_mark(task.folder.parent, task.mark)
    with _exclusive_folder(task.folder):
        if path.exists():
            result = EpochResult(**read_json(path))
        else:
            result = _measured(task, start)
            if not result.killed:
                write_json(path, dataclasses.asdict(result))
        if not result.killed and (result.accuracy is None or task.epoch == len(task.run.epoch_ends)):
            Checkpoints(task.folder).clear()
    return result


def _measured(task: EpochTask, start: float) -> EpochResult:
    try:
        result = _trained(task)
    except InfeasibleTrialError as error:
        result = EpochResult(accuracy=None, reason=str(error), seconds=0.0)
    # What starting processes took is part of taking the trial up.
    seconds = time.monotonic() - start
    switch_seconds = result.switch_seconds + seconds - result.seconds if result.seconds else 0.0
    return dataclasses.replace(result, seconds=seconds, switch_seconds=switch_seconds)


def _trained(task: EpochTask) -> EpochResult:
    if task.run.processes > 1:
        return train_on_ranks(task)
    with distributed.session(task.run.threads) as ranks:
        return train_epoch(task, ranks)


@contextmanager
def _exclusive_folder(folder: Path) -> Iterator[None]:
    """Wait for processes that outlived the search that asked them: two would write the same checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with (folder / RANKS).open("a+") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
