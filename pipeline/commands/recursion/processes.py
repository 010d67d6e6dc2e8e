"""Stages in processes of their own, which end when this one does."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from pipeline.errors import Terminated
from pipeline.paths import DataPaths, WorkPaths
from pipeline.processes import signal_on_parents_death


class StageFailedError(Exception):
    """A stage ended with `code`, its own or 128 + the signal that ended it; why has been printed."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class StageProcesses:
    """Runs stages one at a time, as `dvc repro` would.

    Args:
        network: the item of every stage.
    """

    def __init__(self, network: str) -> None:
        self._network = network
        self._starting = False
        self._running: subprocess.Popen[bytes] | None = None
        self._asked: int | None = None

    @contextmanager
    def heeding_signals(self) -> Iterator[None]:
        """Within the block SIGTERM and SIGINT go to the stage that runs; then, or if none does, the block ends.

        Raises:
            Terminated: after SIGTERM, where the stage has not said so itself.
            KeyboardInterrupt: likewise after SIGINT.
        """
        before = {number: signal.signal(number, self._pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, stage: str, params: Path, data: DataPaths, work: WorkPaths) -> None:
        """Run a stage to its end; what it prints goes where this process's words go.

        Raises:
            StageFailedError: it ended with another code than 0, and has said why.
        """
        places = {"--network": self._network, "--params": params, "--data": data.root, "--work": work.root}
        command = [sys.executable, "-m", f"pipeline.stages.{stage}"]
        command += [str(part) for pair in places.items() for part in pair]
        self._starting = True
        # Of a session of its own: Ctrl-C in a terminal reaches this process, which passes it on once.
        self._running = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=partial(signal_on_parents_death, signal.SIGKILL),
        )
        self._starting = False
        if self._asked is not None:
            self._running.send_signal(self._asked)
        code = self._running.wait()
        self._running = None
        # An import that is interrupted may turn that into an error of its own, with which Python ends with 1.
        if self._asked is not None and code <= 1:
            self._end(f"stopped in {stage}" if code else f"stopped after {stage}")
        if code < 0:
            name = signal.Signals(-code).name
            print(
                f"error: {stage}@{self._network}: ended by {name}, as when memory runs out; free some and run the "
                "same command again to go on",
                file=sys.stderr,
            )
            code = 128 - code
        if code:
            raise StageFailedError(code)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self._asked = number
        if self._running is not None:
            self._running.send_signal(number)
        elif not self._starting:
            self._end("stopped between two stages")

    def _end(self, where: str) -> None:
        if self._asked == signal.SIGINT:
            raise KeyboardInterrupt
        raise Terminated(where)
