"""A tiny study that is interrupted and started again by the same command, and what must come of it."""

import random
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from made_up_training import alive, command, descendants, files_below, kill, run, start, write_project

from pipeline.paths import DataPaths, WorkPaths

HOOKS = Path(__file__).parent / "faults" / "hooks"
INTERVAL = 2
"""Steps between checkpoints."""
STEPS = 12
# The test images are shared out among processes, so that the last digits of their loss depend on how many.
_OF_THE_MACHINE = ("workers", "trained_on", "loss")
_STARTS_WITHIN_S = 60
_ENDS_WITHIN_S = 45  # torchrun ends ranks that do not heed SIGTERM after 30


@dataclass(frozen=True)
class Study:
    """A project folder; `ranks` processes are the stage's own unless a test launches them."""

    folder: Path

    @classmethod
    def write(cls, folder: Path, *, study: Mapping[str, Any] | None = None, **train: Any) -> "Study":
        """Three cells of `STEPS` steps, unless `study` says otherwise; `train` are keys of that section."""
        cells = {"models": ["small_cnn"], "arms": ["full"], "batch_sizes": [24], "seeds": [0, 1, 2]}
        folder.mkdir(exist_ok=True)
        write_project(
            folder,
            study={**cells, "budget": {"steps": STEPS}, **(study or {})},
            train={"checkpoint": {"steps": INTERVAL}, "simulated_workers": 4, **train},
        )
        return cls(folder)

    @property
    def data(self) -> DataPaths:
        return DataPaths(root=self.folder / "data")

    @property
    def work(self) -> WorkPaths:
        return WorkPaths(root=self.folder / "work")

    def run(self, *, ranks: int = 1, environ: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """To its end; with `ranks`, by a torchrun of one's own."""
        done = run(command("train", self.folder, ranks=ranks), environ=environ)
        self.check_no_orphans()
        return done

    def finish(self, *, ranks: int = 1) -> str:
        """To its end, which must be a good one; returns what it printed."""
        done = self.run(ranks=ranks)
        assert done.returncode == 0, done.stderr
        assert not list(self.folder.rglob("*.tmp"))
        assert not self.checkpoints()
        return done.stdout + done.stderr

    def fault(self, signal_name: str, target: str, part: str, number: int) -> "subprocess.CompletedProcess[str]":
        """Run until a signal comes before a chosen file operation, see hooks/sitecustomize.py."""
        return self.run(environ={"FAULT": f"{signal_name} {target} {part} {number}", "PYTHONPATH": str(HOOKS)})

    def kill_at_random(self, rng: random.Random, *, ranks: int = 1, of_a_rank: bool = False) -> bool:
        """SIGKILL the started process, or one of the ranks below it, at a random time in training.

        Returns:
            False if the study was finished by then.
        """
        before = self.progress()
        process, below = start(command("train", self.folder, ranks=ranks)), set[int]()
        try:
            end = time.monotonic() + _STARTS_WITHIN_S
            while process.poll() is None and self.progress() == before:
                assert time.monotonic() < end, "does not train"
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.3))
            below = descendants(process.pid)
            if process.poll() is not None:
                assert process.returncode == 0, process.communicate()
                return False
            victim = rng.choice(sorted(below)) if of_a_rank and below else process.pid
            kill_one(victim)
            process.wait(timeout=_ENDS_WITHIN_S)
            self.check_no_orphans()
        finally:
            kill(process, *alive(below))
        return True

    def checkpoints(self) -> list[int]:
        """Steps of those on the disk."""
        steps = (re.fullmatch(r"step-(\d+)\..*\.pt", path.name) for path in files_below(self.work.root))
        return sorted(int(step[1]) for step in steps if step)

    def cells(self) -> dict[str, int]:
        """The finished cells in the ledger, and when each was written."""
        return {path.name: path.stat().st_mtime_ns for path in self.work.cells.glob("[0-9a-f]*")}

    def progress(self) -> tuple[object, ...]:
        """Changes with every checkpoint and every finished cell."""
        return (*self.checkpoints(), *self.cells())

    def outcome(self) -> dict[str, Any]:
        """All that must not depend on interruptions, nor on the number of processes of a tree."""
        table: list[dict[str, Any]] = pyarrow.parquet.read_table(self.data.runs("tiny")).to_pylist()
        return {
            "cells": [{key: value for key, value in row.items() if key not in _OF_THE_MACHINE} for row in table],
            "losses": [row["loss"] for row in table],
            "history": self.data.history("tiny").read_bytes(),
            "correct": self.data.correct("tiny").read_bytes(),
            "best": self.data.trained_weights("tiny").read_bytes(),
            "ledger": {
                f"{key}/{name}": (self.work.cells / key / name).read_bytes()
                for key in self.cells()
                for name in ("correct.npy", "weights.pt")
                if (self.work.cells / key / name).exists()
            },
        }

    def assert_equals(self, whole: "Study") -> None:
        """The same weights in every bit, and all that follows from them, as of a study that nothing happened to."""
        found, expected = self.outcome(), whole.outcome()
        assert found["losses"] == pytest.approx(expected["losses"], rel=1e-6, abs=0)
        for part in ("cells", "ledger", "correct", "history", "best"):
            assert found[part] == expected[part], part

    def check_no_orphans(self) -> None:
        """No process that has this folder in its command line, a moment after the study ended."""
        end = time.monotonic() + _ENDS_WITHIN_S
        while found := self._processes():
            assert time.monotonic() < end, f"still running: {found}"
            time.sleep(0.05)

    def _processes(self) -> set[int]:
        mine = set()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.folder).encode() in path.read_bytes():
                    mine.add(int(path.parent.name))
            except OSError:
                continue
        return alive(mine)


def kill_one(pid: int) -> None:
    """SIGKILL, if it still runs."""
    subprocess.run(["kill", f"-{int(signal.SIGKILL)}", str(pid)], check=False, capture_output=True)


def starts_again(printed: str) -> list[tuple[int, int]]:
    """From which step and on how many processes, as the stage's log says it."""
    return [(int(step), int(count)) for step, count in re.findall(r"going on from step (\d+), workers: (\d+)", printed)]


def steps_gone_on_from(printed: str) -> list[int]:
    """The same without the processes."""
    return [step for step, _ in starts_again(printed)]
