"""Checkpoints that stay after a run: its state at each link of the hash chain, from which an audit trains a segment."""

from pathlib import Path

from pipeline.artifacts.files import check_regular
from pipeline.config.recipe import CheckpointInterval
from pipeline.distributed import FlagSync, World
from pipeline.errors import InputError
from pipeline.runs.own_checkpoints import OwnCheckpoints
from pipeline.training.checkpointing import Checkpoints, CheckpointScheduler
from pipeline.training.hash_chain import link_is_due
from pipeline.training.settings import TrainSettings
from pipeline.training.state import TrainState

_MAX_BYTES = 16_000_000_000


def kept_checkpoint(folder: Path, step: int) -> Checkpoints:
    """Return the checkpoint after `step` in the folder of a run's kept checkpoints; each has its own folder."""
    return Checkpoints(folder / f"{step:09d}", keep=1)


def has_kept(folder: Path, step: int) -> bool:
    """Return whether the state after `step` was kept."""
    return any((folder / f"{step:09d}").glob("step-*.pt"))


def load_kept(folder: Path, step: int) -> dict[str, object]:
    """Load the state after `step`; anyone may have written the file.

    Raises:
        InputError: it is missing, no regular file, damaged, or of another step.
    """
    reasons: list[str] = []
    for path in (folder / f"{step:09d}").glob("step-*.pt"):
        check_regular(path, max_bytes=_MAX_BYTES)
    latest = kept_checkpoint(folder, step).load_latest(reasons.append)
    if latest is None or latest[0] != step:
        raise InputError(f"{folder}: no sound checkpoint of step {step}{''.join(f' ({line})' for line in reasons[:1])}")
    return latest[1]


class KeepingScheduler(CheckpointScheduler):
    """Saves a run's state as every scheduler, and keeps it after each link of the hash chain but the last.

    Args:
        interval, folder: of the checkpoints from which an interrupted run resumes.
        run: name of the run.
        settings: of the run, which decide where its links are.
        kept: the folder of the run's kept checkpoints.
    """

    def __init__(
        self,
        interval: CheckpointInterval,
        folder: Path,
        flag_sync: FlagSync,
        world: World,
        *,
        run: str,
        settings: TrainSettings,
        kept: Path,
    ) -> None:
        own = OwnCheckpoints(folder, run)
        super().__init__(own, flag_sync, world=world, seconds=interval.seconds, steps=interval.steps)
        self._settings, self._kept, self._writes = settings, kept, world.is_main

    def maybe_save(self, state: TrainState, *, local: bool) -> None:
        """Keep the state if a link was added after this step, then save as the parent; all ranks call it."""
        if link_is_due(self._settings, state.step):
            content = state.state_dict(local=local)
            if self._writes:
                kept_checkpoint(self._kept, state.step).save(state.step, content)
        super().maybe_save(state, local=local)
