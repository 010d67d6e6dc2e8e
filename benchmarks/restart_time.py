"""How long after a kill does a study train again?

A study of one long cell, with a checkpoint after every step, is killed in the middle: its only
process, one of its two ranks, the process that launched them, or all at once. `ended_s` is the time
from the kill until no process of it is left; `again_s` the time from the same command's start until
the first step that was not done before has its checkpoint. Under an agent of one's own (torchrun
--max-restarts) nobody gives the command again: both times then count from the kill, `ended_s` to the
end of the first ranks. On the CPU.

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
from benchmarks.study_overhead import stage_of, write_project
from pipeline.processes import child_pids

GOAL_S = 10.0
_GIVE_UP_S = 180.0
_AGENT = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=3"]


class RunningStudy:
    """The command that trains the study in `folder`."""

    def __init__(self, folder: Path, *, agent: bool = False) -> None:
        self._folder = folder
        command = [sys.executable, *(_AGENT if agent else []), *stage_of(folder)]
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)

    def step(self) -> int:
        """Of its newest checkpoint."""
        return max((int(path.name[5:14]) for path in self._folder.rglob("step-*.pt")), default=0)

    def seconds_until_step(self, step: int) -> float:
        """From now until there is a checkpoint of this step or a later one."""
        return _seconds_until(lambda: self.step() >= step)

    def seconds_until_gone(self, pids: list[int]) -> float:
        """From now until neither the command nor `pids` run any more."""

        def gone() -> bool:
            return self._process.poll() is not None and not any(map(_runs, pids))

        return _seconds_until(gone)

    def ranks(self) -> list[int]:
        """The processes that the command started."""
        return child_pids(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it; the kernel ends its ranks."""
        self._process.kill()
        self._process.wait()


def _runs(pid: int) -> bool:
    """Whether it has not ended; whoever takes over orphans may not have noticed that yet."""
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
"""Name -> workers, and who is killed."""


def same_command_again(folder: Path, victims: Victims) -> dict[str, float]:
    """Seconds of one kill and one restart of a study that may have been begun before."""
    with RunningStudy(folder) as study:
        study.seconds_until_step(study.step() + 3)
        everyone = study.ranks()
        for pid in victims(study):
            os.kill(pid, signal.SIGKILL)
        ended = study.seconds_until_gone(everyone)
        begun = study.step()
    with RunningStudy(folder) as study:
        again = study.seconds_until_step(begun + 1)
    return {"ended_s": ended, "again_s": again}


def agents_own_restart(folder: Path) -> dict[str, float]:
    """Seconds from the kill of a rank, when torchrun starts the ranks again by itself."""
    with RunningStudy(folder, agent=True) as study:
        study.seconds_until_step(study.step() + 3)
        # The step that was being saved may yet appear.
        begun, first = study.step() + 1, study.ranks()
        os.kill(first[-1], signal.SIGKILL)
        ended = _seconds_until(lambda: not any(map(_runs, first)))
        return {"ended_s": ended, "again_s": ended + study.seconds_until_step(begun + 1)}


def main() -> int:
    """Print the table and one line of JSON; exit code 1 if a median misses the goal."""
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
    for number, (name, found) in itertools.product(range(arguments.rounds), times.items()):
        workers, victims = KILLS.get(name, (2, None))
        with tempfile.TemporaryDirectory() as folder:
            write_project(Path(folder), arguments, workers=workers, simulated_workers=2, checkpoint={"steps": 1})
            found.append(same_command_again(Path(folder), victims) if victims else agents_own_restart(Path(folder)))
        print(f"round {number + 1}, {name}: {found[-1]}", file=sys.stderr)
    rows: list[Row] = [
        {
            "killed": name,
            "ended_s": round(float(np.median([one["ended_s"] for one in found])), 2),
            "again_s": round(float(np.median([one["again_s"] for one in found])), 2),
            "again_s_min_max": " ".join(f"{end([one['again_s'] for one in found]):.2f}" for end in (min, max)),
        }
        for name, found in times.items()
    ]
    print_results(arguments, rows)
    return int(any(float(row["again_s"]) > GOAL_S for row in rows))


if __name__ == "__main__":
    sys.exit(main())
