"""Checkpoints that name their run: those of another run, moved to its folder, would pass for its own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.recipe import CheckpointInterval
from pipeline.distributed import FlagSync, World
from pipeline.errors import DataError
from pipeline.training.checkpointing import Checkpoints, CheckpointScheduler
from pipeline.training.run_key import checkpoint_folder_name

_RUN = "run"


class OwnCheckpoints(Checkpoints):
    """The checkpoints in one folder, with the name of their run in each.

    Args:
        folder: belongs to one run.
        run: name of the run, such as its fingerprint.
        keep: as `Checkpoints`.
    """

    def __init__(self, folder: Path, run: str, *, keep: int = 2) -> None:
        super().__init__(folder, keep=keep)
        self._run = run

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Save as `Checkpoints`, with the name of the run."""
        super().save(step, {**state, _RUN: self._run})

    def load_latest(self, log: Callable[[str], None]) -> tuple[int, dict[str, Any]] | None:
        """Load as `Checkpoints`. Files without the name of a checkpoint are passed over, with a line for each.

        Checkpoints of earlier versions name no run.

        Raises:
            DataError: the latest sound checkpoint is of another run.
        """
        named = {file.path for file in self._files()}
        for path in sorted(self._folder.iterdir()) if self._folder.is_dir() else []:
            if path not in named and not path.name.endswith(".tmp"):
                log(f"{path}: is no file with the name of a checkpoint; skipped")
        latest = super().load_latest(log)
        if latest is None:
            return None
        step, state = latest
        if (run := state.pop(_RUN, self._run)) != self._run:
            raise DataError(
                f"{self._folder}: its checkpoint of step {step} is one of {str(run)[:80]}, not of {self._run}; remove "
                "the folder, and run the same command again"
            )
        return step, state


def own_checkpointer(
    interval: CheckpointInterval, folder: Path, flag_sync: FlagSync, world: World, *, run: str
) -> CheckpointScheduler:
    """Build the checkpointer for the interval of params.yaml; `folder` belongs to this run only."""
    return CheckpointScheduler(
        OwnCheckpoints(folder, run), flag_sync, world=world, seconds=interval.seconds, steps=interval.steps
    )


def clear_finished(folder: Path, keys: Sequence[str]) -> None:
    """Remove the checkpoints of the runs `keys` from `folder`: a kill leaves a finished run with its last checkpoint.

    Args:
        folder: has a folder for each run, see `checkpoint_folder_name`.
        keys: fingerprints; empty ones are of skipped runs.
    """
    for of_run in [of_run for key in keys if key for of_run in folder.glob(f"{key}-*")]:
        Checkpoints(of_run).clear()


def unused_checkpoints(folder: Path, keys: Sequence[str]) -> Iterator[str]:
    """Yield a line for each entry of `folder` that belongs to none of the runs `keys`, see `clear_finished`."""
    names = {checkpoint_folder_name(key) for key in keys}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name not in names:
            yield (
                f"{path}: belongs to no run of the current settings and code, and is not used; checkpoints are removed "
                "a week after the last one"
            )
