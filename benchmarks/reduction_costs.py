"""Measure what equal bits cost: seconds of a step and peak memory by each reduction, against `ddp`.

A leaf is the share of one simulated worker. Within a launch the reductions take turns in each round, and a ratio is of
one round. The median over rounds is printed with the extremes: of wall time on the slowest rank, and of CPU time,
summed over ranks, which other programs on the machine disturb less. Random images; the learning rate is small.

Peak memory is the largest resident set of a rank, in a launch of its own for each reduction, and its growth since the
network was built.

    python -m benchmarks.reduction_costs --networks small_cnn resnet18 --leaf-images 32 128
"""

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.loop_speed import random_images, settings_for
from benchmarks.measuring import print_results, ratio_spread
from benchmarks.printing import Row
from pipeline import distributed
from pipeline.artifacts.files import read_json, write_json
from pipeline.batching import Reduction
from pipeline.commands.diagnose.timing import Training, step_seconds
from pipeline.distributed import World
from pipeline.models import build_network
from pipeline.training.evaluation import load_images

_MODULE = "benchmarks.reduction_costs"
_REDUCTIONS: tuple[Reduction, ...] = ("ddp", "exact")
_MIB = 1 << 20


def _training(arguments: argparse.Namespace, network: str, leaf: int, reduction: Reduction, world: World) -> Training:
    batch = leaf * arguments.leaves
    chosen = argparse.Namespace(network=network, image_size=arguments.image_size, batch_size=batch)
    settings = replace(settings_for(chosen), simulated_workers=arguments.leaves, reduction=reduction, threads=1)
    pixels, labels = random_images(2 * batch, arguments.image_size)
    return Training(
        settings=settings,
        images=load_images(pixels, settings, training=True, device=world.device),
        labels=torch.from_numpy(labels).to(world.device),
        train_mask=np.ones(len(labels), dtype=np.bool_),
        world=world,
        micro_batch="auto",
    )


def _costs(training: Training, n_steps: int) -> tuple[float, float]:
    """Return wall seconds of a step on the slowest rank, and CPU seconds over all ranks."""
    moments: list[float] = []
    wall = float(np.median(step_seconds(training, n_steps, lambda: moments.append(time.process_time()))))
    cpu = float(np.median(np.diff(moments)[-n_steps:]))
    return max(distributed.all_gather_object(wall)), sum(distributed.all_gather_object(cpu))


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def measure(arguments: argparse.Namespace, world: World) -> list[dict[str, Any]]:
    """Measure on these ranks; rows of one reduction each."""
    rows = []
    for network, leaf in itertools.product(arguments.networks, arguments.leaf_images):
        build_network(network, 10, stem="imagenet", seed=0)
        before = _peak_bytes()
        trainings = {name: _training(arguments, network, leaf, name, world) for name in arguments.reductions}
        costs: dict[str, list[tuple[float, float]]] = {name: [] for name in trainings}
        for _ in range(arguments.rounds):
            for name, training in trainings.items():
                costs[name].append(_costs(training, arguments.steps))
        peaks = distributed.all_gather_object((_peak_bytes(), _peak_bytes() - before))
        rows += [
            {"network": network, "leaf": leaf, "reduction": name, "costs": costs[name], "peak": max(peaks)}
            for name in trainings
        ]
    return rows


def _launch(arguments: argparse.Namespace, *options: str) -> list[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        code = distributed.launch(_MODULE, [*sys.argv[1:], *options, f"--results={path}"], arguments.ranks)
        assert code == 0, f"the launch ended with {code}"
        results: list[dict[str, Any]] = read_json(path)
    return results


def _rows(timed: Sequence[dict[str, Any]], peaks: Sequence[dict[str, Any]]) -> list[Row]:
    def of(rows: Sequence[dict[str, Any]], row: dict[str, Any], reduction: str) -> dict[str, Any]:
        same = (row["network"], row["leaf"], reduction)
        return next(one for one in rows if (one["network"], one["leaf"], one["reduction"]) == same)

    table: list[Row] = []
    for row in timed:
        base = of(timed, row, "ddp")["costs"]
        ratios = [[mine[kind] / ddp[kind] for mine, ddp in zip(row["costs"], base, strict=True)] for kind in range(2)]
        (peak, growth), (ddp_peak, _) = (of(peaks, row, name)["peak"] for name in (row["reduction"], "ddp"))
        cpu = ratio_spread(ratios[1])
        table.append(
            {
                "network": row["network"], "leaf": row["leaf"], "reduction": row["reduction"],
                "seconds": round(float(np.median([wall for wall, _ in row["costs"]])), 4),
                **ratio_spread(ratios[0]), "cpu_ratio": cpu["ratio_median"],
                "peak_mib": peak // _MIB, "growth_mib": growth // _MIB, "peak_ratio": round(peak / ddp_peak, 3),
            }
        )  # fmt: skip
    return table


def main() -> None:
    """Print the table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--networks", nargs="+", default=["small_cnn", "resnet18"])
    parser.add_argument("--leaf-images", nargs="+", type=int, default=[32, 128])
    parser.add_argument("--leaves", type=int, default=4, help="simulated workers of a batch")
    parser.add_argument("--reductions", nargs="+", choices=_REDUCTIONS, default=list(_REDUCTIONS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, help=argparse.SUPPRESS)  # output file of the ranks
    arguments = parser.parse_args()
    if distributed.launched_by_torchrun():
        with distributed.join_process_group(1) as world:
            measured = measure(arguments, world)
            if world.is_main:
                write_json(arguments.results, measured)
        return
    timed = _launch(arguments)
    peaks = [
        row
        for network, leaf, name in itertools.product(arguments.networks, arguments.leaf_images, arguments.reductions)
        for row in _launch(
            arguments, "--networks", network, "--leaf-images", str(leaf), "--reductions", name, "--rounds=1"
        )
    ]
    del arguments.results
    print_results(arguments, _rows(timed, peaks))


if __name__ == "__main__":
    main()
