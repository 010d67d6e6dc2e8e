"""Saving a run's state now and then, and when the process is asked to end."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline import distributed
from pipeline.config.recipe import CheckpointInterval
from pipeline.distributed import Agreement, Ranks
from pipeline.errors import Terminated
from pipeline.run_log import RunLog
from pipeline.training.checkpoints import Checkpoints
from pipeline.training.state import TrainState


class Pauses:
    """The points at which a run could go on later; all ranks hold one.

    Args:
        checkpoints: of this run; rank 0's disk decides.
        agreement: from `end_and_due`; runs one after another may share it.
        seconds, steps: at most this between two of them; exactly one is given.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        agreement: Agreement,
        *,
        ranks: Ranks,
        seconds: float | None = None,
        steps: int | None = None,
    ) -> None:
        assert (seconds is None) != (steps is None)
        agreement.forget()
        self._checkpoints, self._ranks = checkpoints, ranks
        self._seconds, self._steps = seconds, steps
        self._agreement = agreement
        self._asked_to_end = threading.Event()
        self._saved_at = time.monotonic()
        self._saved_step = 0

    @property
    def asked_to_end(self) -> bool:
        """SIGTERM came while watched, and has not ended the run yet."""
        return self._asked_to_end.is_set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While active, SIGTERM ends the run at the next step, or the block at its end, not the process at once.

        Raises:
            Terminated: at the end of the block, where SIGTERM came after the last step but one.
        """
        before = signal.signal(signal.SIGTERM, lambda *_: self._asked_to_end.set())
        try:
            yield
        except RuntimeError:
            signal.signal(signal.SIGTERM, before)
            # A lost rank ends an exchange so; torchrun asks the others to end, and asks once.
            if self.asked_to_end and self._ranks.count > 1:
                signal.raise_signal(signal.SIGTERM)
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
        if self.asked_to_end:
            raise Terminated("stopped after the last step")

    def resume(self, state: TrainState, ranks: Ranks, log: RunLog) -> None:
        """Go back to the newest sound checkpoint, if there is one."""
        found = distributed.broadcast(self._checkpoints.newest(log.info) if ranks.is_main else None)
        if found is not None:
            step, saved = found
            state.restore(saved, ranks)
            log.info(f"going on from step {step}, workers: {ranks.count}")
        self._saved_step = state.step

    def offer(self, state: TrainState, *, local: bool) -> None:
        """Between two steps: save if it is time to; all ranks call it after the same steps.

        Raises:
            Terminated: on all ranks, if any was asked to end; the state is saved.
        """
        end, late = self._agreement.exchange([self.asked_to_end, self._is_late()])
        since = state.step - self._saved_step
        # Steps are counted by all ranks alike. The clock's word may come a step later, and once more
        # after the save that answered it.
        if end or (since >= self._steps if self._steps is not None else late and since > 1):
            content = state.to_save(local=local)
            if self._ranks.is_main:
                self._checkpoints.save(state.step, content)
            self._saved_at, self._saved_step = time.monotonic(), state.step
        if end:
            # A rank that ended while another is still saving would have that one ended, too.
            distributed.barrier()
            self._asked_to_end.clear()
            raise Terminated(f"stopped after step {state.step}, which is saved")

    def finished(self) -> None:
        """The run has ended, and its result is safe."""
        if self._ranks.is_main:
            self._checkpoints.clear()

    def _is_late(self) -> bool:
        """By rank 0's clock alone: one opinion is enough."""
        if self._seconds is None or not self._ranks.is_main:
            return False
        return time.monotonic() - self._saved_at >= self._seconds


def make_pauses(interval: CheckpointInterval, folder: Path, agreement: Agreement, ranks: Ranks) -> Pauses:
    """As params.yaml has it; `folder` belongs to this one run."""
    return Pauses(Checkpoints(folder), agreement, ranks=ranks, seconds=interval.seconds, steps=interval.steps)


def end_and_due() -> Agreement:
    """What all ranks agree on between steps: whether to end, and whether a checkpoint is due."""
    return Agreement(n_flags=2)
