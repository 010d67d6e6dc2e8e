"""Time all-reduces of several sizes for `simulate --fit`, on ranks of this machine or of a given torchrun job.

    python -m benchmarks.all_reduce_times --ranks 2 4 --out points.json
    torchrun --nnodes=2 --nproc-per-node=1 ... -m benchmarks.all_reduce_times --out points.json

One file holds one kind of link: ranks of one node, or one rank on each node. Gloo, on CPUs, reduces in a ring.
`--algorithm` selects the algorithm of NCCL. To fit a file with one number of ranks, run
`simulate --fit points.json --hold-out n_bytes`. More ranks than cores measure the scheduler.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from pipeline import distributed
from pipeline.artifacts.files import write_json
from pipeline.distributed import World
from pipeline.simulator import AllReduceTiming
from pipeline.simulator.fitting import AllReduceRecord, AllReduceRecords, load_all_reduce_times
from pipeline.simulator.job import elapsed_seconds, record_event

_MODULE = "benchmarks.all_reduce_times"
_MIB = 2**20
BYTES = (4_096, 65_536, 1 * _MIB, 4 * _MIB, 16 * _MIB)
_WARM_UP = 3


def all_reduce_time(n_bytes: int, world: World, repeats: int) -> AllReduceTiming:
    """Return the median over `repeats` of the slowest rank's time, after a warm-up; all ranks must call it."""
    tensor = torch.zeros(n_bytes // 4, device=world.device)
    pairs = []
    for _ in range(_WARM_UP + repeats):
        distributed.barrier()
        start = record_event(world.device)
        distributed.all_reduce_sum_(tensor)
        pairs.append((start, record_event(world.device)))
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    local_seconds = [elapsed_seconds(*pair) for pair in pairs[_WARM_UP:]]
    slowest = np.max(distributed.all_gather_object(local_seconds), axis=0)
    return AllReduceTiming(float(n_bytes), world.size, float(np.median(slowest)))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, or launch the ranks that measure; rank 0 writes the file of points."""
    arguments = _arguments(argv)
    if distributed.launched_by_torchrun():
        _measure(arguments)
        return 0
    points: list[AllReduceRecord] = []
    with TemporaryDirectory() as folder:
        part = Path(folder) / "points.json"
        for count in arguments.ranks:
            options = ["--bytes", *map(str, arguments.bytes), "--repeats", str(arguments.repeats)]
            options += ["--algorithm", arguments.algorithm, "--out", str(part)]
            code = distributed.launch(_MODULE, options, count)
            if code:
                return code
            points += load_all_reduce_times(part).points
    _write(arguments, points)
    print(
        f"written: {arguments.out}, {len(points)} all-reduces, for `python -m pipeline simulate --fit {arguments.out}`"
    )
    return 0


def _measure(arguments: argparse.Namespace) -> None:
    """Measure on each rank; rank 0 writes the file."""
    os.environ["NCCL_ALGO"] = arguments.algorithm.capitalize()
    with distributed.join_process_group("auto") as world:
        timings = [all_reduce_time(n_bytes, world, arguments.repeats) for n_bytes in arguments.bytes]
        if world.is_main:
            points = [AllReduceRecord(n_bytes=int(n), workers=count, seconds=seconds) for n, count, seconds in timings]
            _write(arguments, points)


def _write(arguments: argparse.Namespace, points: Sequence[AllReduceRecord]) -> None:
    times = AllReduceRecords(algorithm=arguments.algorithm, points=tuple(points))
    write_json(arguments.out, times.model_dump())


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[2], help="numbers of ranks, 2 or more; ignored under torchrun"
    )
    parser.add_argument(
        "--bytes", type=int, nargs="+", default=BYTES, help="three sizes or more, each at least 4 bytes"
    )
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--algorithm", choices=["ring", "tree"], default="ring", help="algorithm of NCCL")
    parser.add_argument("--out", type=Path, default=Path(".work/all_reduce_times.json"))
    arguments = parser.parse_args(argv)
    if arguments.algorithm == "tree" and not torch.cuda.is_available():
        parser.error("--algorithm tree: gloo, on CPUs, reduces in a ring; omit the option")
    if min(arguments.ranks) < 2:
        parser.error(f"--ranks {min(arguments.ranks)}: one rank sends nothing; give 2 or more")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
