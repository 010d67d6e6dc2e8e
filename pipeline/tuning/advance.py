"""The next epoch of a trial: a task for any process that sees the files."""

import dataclasses
import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline import distributed
from pipeline.artifacts.json_file import read_json, write_json
from pipeline.training.checkpoints import Checkpoints
from pipeline.tuning.epoch import EpochResult, EpochTask, FailedBySettings, train_epoch
from pipeline.tuning.ranks import RANKS, train_by_ranks
from pipeline.tuning.shared_folder import check_mark


def advance(task: EpochTask) -> EpochResult:
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
    with _alone_in(task.folder):
        if path.exists():
            result = EpochResult(**read_json(path))
        else:
            result = _measured(task, start)
            if not result.killed:
                write_json(path, dataclasses.asdict(result))
        if not result.killed and (result.accuracy is None or task.epoch == len(task.run.ends)):
            Checkpoints(task.folder).clear()
    return result


def _measured(task: EpochTask, start: float) -> EpochResult:
    try:
        result = _trained(task)
    except FailedBySettings as error:
        result = EpochResult(accuracy=None, reason=str(error), seconds=0.0)
    # What starting processes took is part of taking the trial up.
    seconds = time.monotonic() - start
    switch_seconds = result.switch_seconds + seconds - result.seconds if result.seconds else 0.0
    return dataclasses.replace(result, seconds=seconds, switch_seconds=switch_seconds)


def _trained(task: EpochTask) -> EpochResult:
    if task.run.processes > 1:
        return train_by_ranks(task)
    with distributed.session(task.run.threads) as ranks:
        return train_epoch(task, ranks)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait for processes that outlived the search that asked them: two would write the same checkpoints."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with (folder / RANKS).open("a+") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
