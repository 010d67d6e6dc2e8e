"""Processes and results of the rounds."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

import numpy as np

from pipeline.artifacts.files import write_json
from pipeline.artifacts.overrides import Override, write_overrides
from pipeline.artifacts.prepared import count_planted, planted_note
from pipeline.commands.iteration.rounds import FirstRound, RoundResult, compare, has_converged
from pipeline.errors import Terminated
from pipeline.paths import DataPaths, WorkPaths
from pipeline.processes import set_parent_death_signal

# Stages in processes of their own, which end when this one does.


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
            preexec_fn=partial(set_parent_death_signal, signal.SIGKILL),
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


# What a recursion leaves for people: how the rounds went, and the decisions that bring the last one about.


def decisions(first: FirstRound, verdicts: Sequence[RoundResult], *, n_planted: int | None = None) -> list[Override]:
    """People's own overrides, then those by which the last round differs from round 0, in the order of the images.

    They carry no time, since equal results are equal bytes.

    Args:
        n_planted: how many training labels were changed on purpose; the notes then say so.
    """
    last, note = verdicts[-1].keep, f"recursive filter, round {len(verdicts) - 1}"
    if n_planted is not None:
        note = f"{note}; {planted_note(n_planted)}"
    added = [
        Override(
            path=first.paths[row],
            sha256=first.sha256[row],
            decision="keep" if last[row] else "drop",
            note=note,
            timestamp="",
            line=0,
        )
        for row in np.flatnonzero(last != first.verdict.keep).tolist()
    ]
    people = {override.path for override in first.overrides}
    assert not people.intersection(override.path for override in added), "a round overruled a person"
    return [*first.overrides, *added]


def write_results(
    data: DataPaths, network: str, first: FirstRound, verdicts: Sequence[RoundResult], settle_at: float
) -> None:
    """Write data/recursive/<network>/."""
    decided = decisions(first, verdicts, n_planted=count_planted(data))
    write_overrides(data.recursive_overrides(network), decided)
    write_json(
        data.recursive_rounds(network),
        {
            "network": network,
            "settle_at": settle_at,
            "settled": has_converged(verdicts, settle_at),
            "overrides_added": len(decided) - len(first.overrides),
            "rounds": compare(verdicts),
        },
    )
