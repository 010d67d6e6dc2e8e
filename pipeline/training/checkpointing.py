"""Save a run's state while it trains, and resume it from the latest valid checkpoint.

A checkpoint is one plain `torch.save` file, `step-<step>.<sha256>.pt`, named after the SHA-256 of its bytes. File and
digest appear by the same rename, and any tool can check or load it.
"""

import hashlib
import io
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from pipeline import distributed
from pipeline.artifacts.files import write_bytes
from pipeline.distributed import FlagSync, World
from pipeline.errors import Terminated, explain_out_of_memory, lacks_resources, long_reason
from pipeline.run_log import RunLog
from pipeline.training.state import TrainState

_NAME = re.compile(r"step-([0-9]+)\.([0-9a-f]{64})\.pt")
# torch.load(weights_only=True) reads integers of up to 255 bytes.
_INT_BITS = 8 * 255 - 1

STALE_AFTER_S = 7 * 24 * 3600.0
"""Checkpoints of a run that saved nothing for a week are removed."""


class _File(NamedTuple):
    step: int
    sha256: str
    path: Path


class _InvalidCheckpoint(Exception):  # noqa: N818 - never leaves this module
    """A checkpoint cannot be used; the message gives the reason."""


class Checkpoints:
    """The checkpoints in one folder, which belongs to one run.

    One process at a time may save or clear; any may read while none does. Files with other names in the folder stay.

    Args:
        keep: checkpoints to keep, 1 or more. With two or more there is one to fall back to. While saving, the disk
            holds one more.
    """

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        assert keep >= 1, keep
        self._folder = folder
        self._keep = keep
        self._invalid: set[Path] = set()

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Save `state` as the latest checkpoint; it is on the disk when this returns.

        Then the oldest beyond `keep` are removed, with those that `load_latest` found invalid and those of later
        steps, which an earlier attempt leaves behind. Equal states, with keys in equal order, give equal bytes.

        Args:
            step: optimizer steps done, from 0.
            state: nested dicts with str or int keys, lists and tuples of tensors (dense, on any device), int, float,
                bool, str and None.

        Raises:
            TypeError: the state holds another type; the message says where. Nothing was written.
            OSError: the disk is full or fails otherwise, with `errno` and `filename`; earlier checkpoints are intact.
            OutOfMemory: two copies of the state do not fit the memory; nothing was written.
        """
        assert step >= 0, step
        # To an open file, torch.save reports a full disk as RuntimeError.
        buffer = io.BytesIO()
        # The training step that surrounds this would name another setting.
        with explain_out_of_memory("checkpoint: the copy of the training state does not fit the memory; free memory"):
            torch.save({"step": step, "state": _plain(state, "state")}, buffer)
        content = buffer.getbuffer()
        path = self._folder / f"step-{step:09d}.{hashlib.sha256(content).hexdigest()}.pt"
        self._remove_leftovers()
        write_bytes(path, content)
        files = self._files()
        earlier = [file.path for file in reversed(files) if file.step < step and file.path not in self._invalid]
        kept = {path, *earlier[: self._keep - 1]}
        for file in files:
            if file.path not in kept:
                file.path.unlink()

    def load_latest(self, log: Callable[[str], None]) -> tuple[int, dict[str, Any]] | None:
        """Load step and state of the latest valid checkpoint; None if there is none.

        Nothing is unpickled before its digest is verified, and only data is ever unpickled.

        Args:
            log: receives one line for each later checkpoint that is invalid.

        Returns:
            The state as saved: equal values, types, strides and order. But tensors are on the CPU, share no memory and
            require no gradient, and every mapping is a dict.
        """
        for file in reversed(self._files()):
            try:
                return file.step, _load(file)
            except _InvalidCheckpoint as reason:
                self._invalid.add(file.path)
                log(f"{file.path}: {reason}; skipped")
        return None

    def clear(self) -> None:
        """Remove all checkpoints, and the folder if nothing else is in it: the run is finished."""
        if not self._folder.is_dir():
            return
        self._remove_leftovers()
        # Oldest first: a kill in between leaves the run at its end.
        for file in self._files():
            file.path.unlink()
        if not any(self._folder.iterdir()):
            self._folder.rmdir()

    def _files(self) -> list[_File]:
        """Return the checkpoint files by step, ascending."""
        named = ((path, _NAME.fullmatch(path.name)) for path in self._folder.glob("step-*.pt"))
        return sorted(_File(int(name[1]), name[2], path) for path, name in named if name and path.is_file())

    def _remove_leftovers(self) -> None:
        # Of any process id: only this process saves here, and in a container a killed one had the same id.
        for leftover in self._folder.glob(".step-*.tmp"):
            leftover.unlink()


def remove_stale_checkpoints(folder: Path, *, max_age_s: float) -> None:
    """Remove the checkpoints of old runs whose folders are in `folder`, and `folder` itself if it becomes empty.

    Args:
        max_age_s: seconds without a save after which a run is old.
    """
    if not folder.is_dir():
        return
    for run in folder.iterdir():
        if run.stat().st_mtime <= time.time() - max_age_s:
            Checkpoints(run).clear()
    if not any(folder.iterdir()):
        folder.rmdir()


def _load(file: _File) -> dict[str, Any]:
    try:
        content = file.path.read_bytes()
    except OSError as error:
        if lacks_resources(error):
            raise
        raise _InvalidCheckpoint(f"cannot be read ({error.strerror})") from None
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise _InvalidCheckpoint(f"its {len(content)} bytes have another SHA-256 than its name")
    try:
        loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        step, state = loaded["step"], loaded["state"]
    except Exception as error:
        # Bytes of any kind can provoke any error in the unpickler. A valid checkpoint without memory for it stays.
        if lacks_resources(error):
            raise
        raise _InvalidCheckpoint(f"is no checkpoint ({long_reason(error)})") from None
    if step != file.step or not isinstance(state, dict):
        raise _InvalidCheckpoint(f"is not of the step in its name, but of {str(step)[:20]}")
    return state


def _plain(value: Any, where: str) -> Any:
    """Copy without shared memory, since sharing would show in the bytes."""
    if isinstance(value, Mapping):
        return {_key(key, where): _plain(inner, f"{where}[{key!r}]") for key, inner in value.items()}
    # Exact types: subclasses such as numpy.float64 or named tuples are pickled as calls.
    kind = type(value)
    if kind in (list, tuple):
        return kind(_plain(inner, f"{where}[{index}]") for index, inner in enumerate(value))
    if kind in (Tensor, Parameter) and value.layout is torch.strided and not value.is_meta:
        return value.detach().to("cpu", copy=True)
    if kind is str:
        # The pickler writes an object once and then refers to it.
        return sys.intern(value)
    if value is None or kind in (float, bool) or (kind is int and value.bit_length() <= _INT_BITS):
        return value
    raise TypeError(
        f"{where}: a checkpoint cannot hold {kind.__module__}.{kind.__qualname__}; "
        "make it a dense tensor, int, float, bool, str, None, or a dict, list or tuple of these"
    )


def _key(key: Any, where: str) -> str | int:
    if type(key) not in (str, int):
        raise TypeError(f"{where}: a checkpoint's keys are str or int, not {key!r}")
    plain: str | int = _plain(key, where)
    return plain


class Checkpointer:
    """Saves a run's state at intervals and at SIGTERM and SIGINT; all ranks hold one.

    Args:
        checkpoints: of this run; rank 0 saves and loads.
        flag_sync: from `stop_and_save_flags`; consecutive runs may share it.
        seconds, steps: longest interval between two checkpoints; exactly one is given.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        flag_sync: FlagSync,
        *,
        world: World,
        seconds: float | None = None,
        steps: int | None = None,
    ) -> None:
        assert (seconds is None) != (steps is None)
        flag_sync.reset()
        self._checkpoints, self._world = checkpoints, world
        self._seconds, self._steps = seconds, steps
        self._flag_sync = flag_sync
        self._stop_requested = threading.Event()
        self._saved_at = time.monotonic()
        self._saved_step = 0

    @property
    def stop_requested(self) -> bool:
        """Whether a signal arrived in `stop_at_signals` and has not stopped the run yet."""
        return self._stop_requested.is_set()

    @contextmanager
    def stop_at_signals(self) -> Iterator[None]:
        """Treat SIGTERM and SIGINT as requests to stop: the run saves its state and stops after its next step.

        The signal does not end the process; a second SIGINT does, without a save. A SIGINT that the process ignores, as
        background jobs of a shell do, stays ignored.

        Raises:
            Terminated: at the end of the block, if a signal came too late for any step to stop the run.
        """
        # SIGINT first: between the two a KeyboardInterrupt must leave nothing behind.
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def request_stop(number: int, _: FrameType | None) -> None:
            self._stop_requested.set()
            if number == signal.SIGINT:
                signal.signal(signal.SIGINT, signal.default_int_handler)

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        try:
            for number in before:
                if number == signal.SIGTERM or before[number] is not signal.SIG_IGN:
                    signal.signal(number, request_stop)
            yield
        except RuntimeError:
            restore()
            # A lost rank fails a collective with this error; torchrun sends SIGTERM to the others only once.
            if self.stop_requested and self._world.size > 1:
                signal.raise_signal(signal.SIGTERM)
            raise
        finally:
            restore()
        if self.stop_requested:
            raise Terminated("stopped after the last step")

    def resume(self, state: TrainState, log: RunLog) -> None:
        """Load the latest valid checkpoint into `state`, if there is one; all ranks call it."""
        latest = distributed.broadcast_object(self._checkpoints.load_latest(log.info) if self._world.is_main else None)
        if latest is not None:
            step, saved = latest
            state.load_state_dict(saved, self._world)
            log.info(f"resumed from step {step}, workers: {self._world.size}")
        self._saved_step = state.step

    def maybe_save(self, state: TrainState) -> None:
        """Save between two steps if a checkpoint is due; all ranks call it after the same steps.

        Raises:
            Terminated: on all ranks, if any was asked to stop; the state is saved.
        """
        stop, late = self._flag_sync.all_reduce([self.stop_requested, self._is_late()])
        since = state.step - self._saved_step
        # All ranks count the same steps. Between ranks, `FlagSync` answers one call late. So the call after a save
        # reads a flag that was raised before it; `since > 1` ignores that one.
        due = since >= self._steps if self._steps is not None else late and since > 1
        if stop or due:
            content = state.state_dict()
            if self._world.is_main:
                self._checkpoints.save(state.step, content)
            self._saved_at, self._saved_step = time.monotonic(), state.step
        if stop:
            # A rank that exits while another still saves would make torchrun stop that one, too.
            distributed.barrier()
            self._stop_requested.clear()
            raise Terminated(f"stopped after step {state.step}, which is saved")

    def clear(self) -> None:
        """Remove the checkpoints: the run is finished and its result saved."""
        if self._world.is_main:
            self._checkpoints.clear()

    def _is_late(self) -> bool:
        """Return whether the interval has passed; only the clock of rank 0 counts."""
        if self._seconds is None or not self._world.is_main:
            return False
        return time.monotonic() - self._saved_at >= self._seconds


def stop_and_save_flags() -> FlagSync:
    """Return the two flags that ranks share between steps: whether to stop, and whether a checkpoint is due."""
    return FlagSync(n_flags=2)
