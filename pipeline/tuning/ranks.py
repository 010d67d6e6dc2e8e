"""An epoch of a trial on several processes of one machine, which torchrun starts and which are gone afterwards."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import distributed
from pipeline.errors import InputError, Terminated
from pipeline.processes import signal_on_parents_death
from pipeline.tuning.epoch import EpochResult, EpochTask, FailedBySettings, train_epoch

_KILLED_FROM = 128  # a shell's exit code of a process that a signal ended, less the signal
_BAD_INPUT = 2
_MODULE = "pipeline.tuning.ranks"


def train_by_ranks(task: EpochTask, lock: int) -> EpochResult:
    """As `train_epoch`, on `task.run.processes` processes.

    Args:
        lock: file descriptor that they hold open too, so that a lock on it is theirs where this process is killed.

    Raises:
        What `train_epoch` raises on one of them; Terminated too where they were asked to end.
        RuntimeError: one failed and has said why on stderr.
    """
    with tempfile.TemporaryDirectory(dir=task.folder) as folder:
        given = Path(folder) / "task.pickle"
        given.write_bytes(pickle.dumps(task))
        words = ["-m", _MODULE, str(given), str(os.getpid())]
        launcher = subprocess.Popen([sys.executable, *words], stdin=subprocess.DEVNULL, pass_fds=[lock])
        try:
            code = launcher.wait()
        except BaseException:
            # SIGTERM is passed on to the ranks, which save their state.
            launcher.terminate()
            launcher.wait()
            raise
        outcome = _outcome(given)
        if outcome.exists():
            found = pickle.loads(outcome.read_bytes())
            if isinstance(found, BaseException):
                raise found
            assert isinstance(found, EpochResult), found
            return found
    if code == os.EX_TEMPFAIL:
        raise Terminated("what the trials have reached is kept")
    if code >= _KILLED_FROM or code < 0:
        reason = "a process that trained it died; give it more memory, or train on fewer"
        return EpochResult(accuracy=None, reason=reason, seconds=0.0, killed=True)
    raise RuntimeError(f"{task.folder.name}: a process that trained this trial ended with {code}; it said why above")


def _outcome(given: Path) -> Path:
    return given.with_name("outcome.pickle")


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
    try:
        with distributed.session(task.run.threads) as ranks:
            try:
                result = train_epoch(task, ranks)
            except (FailedBySettings, InputError, OSError) as error:
                _leave(given, error)
                raise
            if ranks.is_main:
                _leave(given, result)
    except Terminated:
        return os.EX_TEMPFAIL
    except (FailedBySettings, InputError, OSError):
        return _BAD_INPUT
    return 0


def _leave(given: Path, found: Any) -> None:
    """Whole or not at all; of several ranks that fail, one's word is enough."""
    place = _outcome(given)
    own = place.with_suffix(f".{os.getpid()}")
    own.write_bytes(pickle.dumps(found))
    own.replace(place)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
