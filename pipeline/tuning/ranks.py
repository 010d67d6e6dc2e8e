"""An epoch of a trial on several processes of one machine, which torchrun starts and which are gone afterwards."""

import fcntl
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import distributed
from pipeline.errors import InputError, Terminated, mend_of
from pipeline.processes import signal_on_parents_death
from pipeline.tuning.epoch import EpochResult, EpochTask, FailedBySettings, train_epoch

RANKS = "ranks"
"""File in a trial's folder on which its ranks have a shared lock."""

_MODULE = "pipeline.tuning.ranks"
_KILLED_FROM = 128  # `launch` adds it to the signal
_BAD_INPUT = 2


def train_by_ranks(task: EpochTask) -> EpochResult:
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
    failures = sorted((found for found in left if isinstance(found, Exception)), key=_is_of_settings)
    if failures:
        raise failures[0]
    main_thread = threading.current_thread() is threading.main_thread()
    if code == os.EX_TEMPFAIL and main_thread:
        raise Terminated("what the trials have reached is kept")
    if code == os.EX_TEMPFAIL or code >= _KILLED_FROM or code < 0:
        # A worker whose node is asked to end is lost to the search, as one that was killed.
        reason = "a process that trained it died; give it more memory, or train on fewer"
        return EpochResult(accuracy=None, reason=reason, seconds=0.0, killed=True)
    raise RuntimeError(f"trial {task.folder.name}: a process that trained it ended with {code}; it said why above")


def _is_of_settings(failure: Exception) -> bool:
    return isinstance(failure, FailedBySettings)


def _main(argv: Sequence[str]) -> int:
    """Start the ranks, or be one."""
    given, asking = Path(argv[0]), int(argv[1])
    task: EpochTask = pickle.loads(given.read_bytes())
    if not distributed.launched():
        signal_on_parents_death(signal.SIGKILL)
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
            except (FailedBySettings, InputError, OSError) as error:
                # Before the session makes all but the first wait.
                _leave(given, rank, error)
                raise
            if ranks.is_main:
                _leave(given, rank, result)
    except Terminated:
        return os.EX_TEMPFAIL
    except (FailedBySettings, InputError, OSError) as error:
        if rank == "unknown":
            _leave(given, rank, error)
        elif isinstance(error, OSError):
            # On a full disk what it found may not have been left either.
            print(f"error: {mend_of(error) or error}", file=sys.stderr)
        return _BAD_INPUT
    return 0


def _leave(given: Path, rank: str, found: Any) -> None:
    """Whole or not at all."""
    place = given.with_name(f"outcome-{rank}.pickle")
    own = place.with_suffix(f".{os.getpid()}")
    own.write_bytes(pickle.dumps(found))
    own.replace(place)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
