"""Run the stages of the rounds in child processes, and write the results: statistics of rounds, and overrides."""

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


class StageFailedError(Exception):
    """A stage failed and has printed why.

    Attributes:
        code: exit code of the stage, or 128 + the signal that ended it.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class StageProcesses:
    """Run stages one at a time in child processes, which end when this process does.

    Args:
        name: DVC item of every stage; None for stages without one.
        item: what it is, `network` or `study`.
    """

    def __init__(self, name: str | None, *, item: str = "network") -> None:
        self._item = {} if name is None else {f"--{item}": name}
        self._suffix = "" if name is None else f"@{name}"
        self._starting = False
        self._running: subprocess.Popen[bytes] | None = None
        self._signal: int | None = None

    @contextmanager
    def forwarding_signals(self) -> Iterator[None]:
        """Forward SIGTERM and SIGINT to the running stage, if any, and then leave the block.

        Raises:
            Terminated: after SIGTERM, unless the stage reported it.
            KeyboardInterrupt: likewise after SIGINT.
        """
        handlers = {number: signal.signal(number, self._forward) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def run(self, stage: str, params: Path, data: DataPaths, work: WorkPaths) -> None:
        """Run a stage to its end. It inherits standard output and standard error.

        Raises:
            StageFailedError: the exit code is not 0. The stage has printed why.
        """
        options = {**self._item, "--params": params, "--data": data.root, "--work": work.root}
        command = [sys.executable, "-m", f"pipeline.stages.{stage}"]
        command += [str(part) for pair in options.items() for part in pair]
        self._starting = True
        # A new session: Ctrl-C in a terminal reaches only this process, which forwards it once.
        self._running = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=partial(set_parent_death_signal, signal.SIGKILL),
        )
        self._starting = False
        if self._signal is not None:
            self._running.send_signal(self._signal)
        code = self._running.wait()
        self._running = None
        # An interrupted import may raise another error, after which Python exits with 1.
        if self._signal is not None and code <= 1:
            self._stop(f"stopped in {stage}" if code else f"stopped after {stage}")
        if code < 0:
            name = signal.Signals(-code).name
            print(
                f"error: {stage}{self._suffix}: ended by {name}, as when memory runs out; free memory and run "
                "the same command again to resume",
                file=sys.stderr,
            )
            code = 128 - code
        if code:
            raise StageFailedError(code)

    def _forward(self, number: int, _: FrameType | None) -> None:
        self._signal = number
        if self._running is not None:
            self._running.send_signal(number)
        elif not self._starting:
            self._stop("stopped between two stages")

    def _stop(self, message: str) -> None:
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise Terminated(message)


def decisions(first: FirstRound, results: Sequence[RoundResult], *, n_planted: int | None = None) -> list[Override]:
    """Return the user's overrides, then the differences of the last round from round 0 in image order.

    The added overrides have no timestamp, so that equal results are equal bytes.

    Args:
        n_planted: number of training labels that were changed on purpose. The notes state it.
    """
    last, note = results[-1].keep, f"recursive filter, round {len(results) - 1}"
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
        for row in np.flatnonzero(last != first.result.keep).tolist()
    ]
    manual = {override.path for override in first.overrides}
    assert not manual.intersection(override.path for override in added), "a round overruled a manual override"
    return [*first.overrides, *added]


def write_results(
    data: DataPaths, network: str, first: FirstRound, results: Sequence[RoundResult], min_jaccard: float
) -> None:
    """Write data/recursive/<network>/: rounds.json and overrides.csv."""
    overrides = decisions(first, results, n_planted=count_planted(data))
    write_overrides(data.recursive_overrides(network), overrides)
    write_json(
        data.recursive_rounds(network),
        {
            "network": network,
            "settle_at": min_jaccard,
            "settled": has_converged(results, min_jaccard),
            "overrides_added": len(overrides) - len(first.overrides),
            "rounds": compare(results),
        },
    )
