"""Measure how long after a kill a study trains again, on the CPU.

A study of one long run, with a checkpoint after every step, is killed in the middle: its only process, one of its two
ranks, the process that launched them, or all at once. `ended_s` is the time from the kill until none of its processes
is left. `again_s` is the time from the restart of the same command until the first new step has its checkpoint. Under a
torchrun agent (--max-restarts) the command is not restarted. Then both times count from the kill, and `ended_s` ends
when the first ranks have exited.

    python -m benchmarks.restart_time --network small_cnn --rounds 3
"""

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import numpy as np

from benchmarks.measuring import print_results
from benchmarks.printing import Row
from benchmarks.study_overhead import stage_arguments, write_project
from pipeline.processes import child_pids

GOAL_S = 10.0
_GIVE_UP_S = 180.0
_AGENT = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3"]


class RunningStudy:
    """The command that trains the study in `folder`; a context manager that kills it at the end."""

    def __init__(self, folder: Path, *, agent: bool = False) -> None:
        self._folder = folder
        command = [sys.executable, *(_AGENT if agent else []), *stage_arguments(folder)]
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)

    def step(self) -> int:
        """Return the step of its newest checkpoint."""
        return max((int(path.name[5:14]) for path in self._folder.rglob("step-*.pt")), default=0)

    def seconds_until_step(self, step: int) -> float:
        """Wait for a checkpoint of this step or a later one; return the seconds."""
        return _seconds_until(lambda: self.step() >= step)

    def seconds_until_gone(self, pids: list[int]) -> float:
        """Wait until neither the command nor `pids` run; return the seconds."""

        def stopped() -> bool:
            return self._process.poll() is not None and not any(map(_runs, pids))

        return _seconds_until(stopped)

    def ranks(self) -> list[int]:
        """Return the ids of the processes that the command started."""
        return child_pids(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the command; the kernel ends its ranks."""
        self._process.kill()
        self._process.wait()


def _runs(pid: int) -> bool:
    """Return whether the process runs; a zombie, which its parent has not collected yet, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _seconds_until(reached: Callable[[], bool]) -> float:
    start = time.perf_counter()
    while not reached():
        if time.perf_counter() - start > _GIVE_UP_S:
            raise TimeoutError
        time.sleep(0.01)
    return time.perf_counter() - start


Victims = Callable[[RunningStudy], list[int]]

KILLS: Mapping[str, tuple[int, Victims]] = {
    "1 process": (1, lambda study: [study.pid]),
    "a rank of 2": (2, lambda study: study.ranks()[-1:]),
    "the launcher of 2": (2, lambda study: [study.pid]),
    "all processes of 2": (2, lambda study: [study.pid, *study.ranks()]),
}
"""Name -> number of workers, and the processes to kill."""


def restart_command(folder: Path, victims: Victims) -> dict[str, float]:
    """Kill and restart a study, which may have checkpoints from before; return the seconds of both."""
    with RunningStudy(folder) as study:
        study.seconds_until_step(study.step() + 3)
        ranks = study.ranks()
        for pid in victims(study):
            os.kill(pid, signal.SIGKILL)
        ended = study.seconds_until_gone(ranks)
        last_step = study.step()
    with RunningStudy(folder) as study:
        again = study.seconds_until_step(last_step + 1)
    return {"ended_s": ended, "again_s": again}


def restart_by_agent(folder: Path) -> dict[str, float]:
    """Kill a rank and let torchrun restart the ranks; return the seconds from the kill."""
    with RunningStudy(folder, agent=True) as study:
        study.seconds_until_step(study.step() + 3)
        # The checkpoint that is being saved may still appear.
        last_step, first = study.step() + 1, study.ranks()
        os.kill(first[-1], signal.SIGKILL)
        ended = _seconds_until(lambda: not any(map(_runs, first)))
        return {"ended_s": ended, "again_s": ended + study.seconds_until_step(last_step + 1)}


def main() -> int:
    """Print the table and one line of JSON; return exit code 1 if a median misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--cells", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    times: dict[str, list[dict[str, float]]] = {name: [] for name in (*KILLS, "a rank of 2, under an agent")}
    for number, (name, results) in itertools.product(range(arguments.rounds), times.items()):
        workers, victims = KILLS.get(name, (2, None))
        with tempfile.TemporaryDirectory() as folder:
            write_project(Path(folder), arguments, workers=workers, simulated_workers=2, checkpoint={"steps": 1})
            results.append(restart_command(Path(folder), victims) if victims else restart_by_agent(Path(folder)))
        print(f"round {number + 1}, {name}: {results[-1]}", file=sys.stderr)
    rows: list[Row] = [
        {
            "killed": name,
            "ended_s": round(float(np.median([result["ended_s"] for result in results])), 2),
            "again_s": round(float(np.median([result["again_s"] for result in results])), 2),
            "again_s_min_max": " ".join(f"{end([result['again_s'] for result in results]):.2f}" for end in (min, max)),
        }
        for name, results in times.items()
    ]
    print_results(arguments, rows)
    return int(any(float(row["again_s"]) > GOAL_S for row in rows))


if __name__ == "__main__":
    sys.exit(main())
