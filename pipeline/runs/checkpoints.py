"""Checkpoints of a run: those from which it resumes, and those that stay for an audit.

A checkpoint to resume from names its run, so that one of another run, moved to the folder, does not pass for its own.
One that stays has the state at a link of the hash chain; an audit trains a segment from it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.artifacts.files import check_regular
from pipeline.config.recipe import CheckpointInterval
from pipeline.distributed import FlagSync, World
from pipeline.errors import DataError, InputError
from pipeline.training.checkpointing import Checkpointer, Checkpoints
from pipeline.training.hash_chain import link_is_due
from pipeline.training.run_key import checkpoint_folder_name
from pipeline.training.settings import TrainSettings
from pipeline.training.state import TrainState

_RUN = "run"  # key of a checkpoint
_MAX_BYTES = 16_000_000_000


class RunCheckpoints(Checkpoints):
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
            DataError: the latest valid checkpoint is of another run.
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


def has_checkpoints(folder: Path) -> bool:
    """Return whether an earlier process saved checkpoints in the folder of a run, by this node's disk.

    The folder appears with the first checkpoint, and is removed when the run is finished.
    """
    return folder.is_dir()


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
        reason = "".join(f" ({line})" for line in reasons[:1])
        raise InputError(
            f"{folder}: no valid checkpoint of step {step}{reason}; restore it from a copy, or verify without "
            "--segments"
        )
    return latest[1]


class _KeepingCheckpointer(Checkpointer):
    """Saves a run's state as every checkpointer, and keeps it after each link of the hash chain but the last.

    Args:
        checkpoints: from which an interrupted run resumes.
        settings: of the run, which decide where its links are.
        kept: the folder of the run's kept checkpoints.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        flag_sync: FlagSync,
        world: World,
        interval: CheckpointInterval,
        *,
        settings: TrainSettings,
        kept: Path,
    ) -> None:
        super().__init__(checkpoints, flag_sync, world=world, seconds=interval.seconds, steps=interval.steps)
        self._settings, self._kept, self._writes = settings, kept, world.is_main

    def maybe_save(self, state: TrainState) -> None:
        """Keep the state if a link was added after this step, then save as the parent; all ranks call it."""
        if link_is_due(self._settings, state.step):
            content = state.state_dict()
            if self._writes:
                kept_checkpoint(self._kept, state.step).save(state.step, content)
        super().maybe_save(state)


def run_checkpointer(
    interval: CheckpointInterval,
    folder: Path,
    flag_sync: FlagSync,
    world: World,
    *,
    run: str,
    settings: TrainSettings | None = None,
    kept: Path | None = None,
) -> Checkpointer:
    """Build the checkpointer of a run.

    Args:
        interval: of params.yaml.
        folder: of the checkpoints to resume from; it belongs to this run only.
        run: name of the run, such as its fingerprint.
        settings: of the run; needed with `kept`.
        kept: folder of the checkpoints that stay; None keeps none.
    """
    checkpoints = RunCheckpoints(folder, run)
    if kept is None:
        return Checkpointer(checkpoints, flag_sync, world=world, seconds=interval.seconds, steps=interval.steps)
    assert settings is not None, "they decide where the links are"
    return _KeepingCheckpointer(checkpoints, flag_sync, world, interval, settings=settings, kept=kept)
