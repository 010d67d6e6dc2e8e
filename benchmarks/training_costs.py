"""Measure the cost of BatchNorm groups, micro-batches, exact sums and checkpoints, and the gain of compiling.

Every variant takes turns with the plain run: one worker, one BatchNorm group, one micro-batch. The cost is the ratio of
seconds per step within a round.

    python -m benchmarks.training_costs --batch-size 512 --simulated-workers 8
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.loop_speed import random_images, settings_for
from benchmarks.measuring import print_results, ratio_spread, seconds_of
from benchmarks.printing import Row
from pipeline import distributed
from pipeline.distributed import World
from pipeline.run_log import RunLog
from pipeline.training.checkpointing import Checkpointer, Checkpoints, stop_and_save_flags
from pipeline.training.evaluation import load_images
from pipeline.training.loop import TrainData, train
from pipeline.training.run_options import RunOptions

Step = Callable[[int], float]


def variants(arguments: argparse.Namespace) -> Mapping[str, Mapping[str, Any]]:
    """Return name -> differences from the plain run: keys of the settings, and arguments of `train`."""
    workers = arguments.simulated_workers
    share = arguments.batch_size // workers
    return {
        f"{workers} groups, one micro-batch": {"settings": {"simulated_workers": workers}},
        f"{workers} groups, {workers} micro-batches": {
            "settings": {"simulated_workers": workers},
            "micro_batch": share,
        },
        f"exact sums of {workers}": {"settings": {"simulated_workers": workers, "reduction": "exact"}},
        "clipping": {"settings": {"clip_norm": 1.0}},
        "weight average": {"settings": {"ema_decay": 0.99}},
        "checkpoint every step": {"checkpoint_steps": 1},
        "compiled": {"settings": {"compile": True}},
    }


def timed(arguments: argparse.Namespace, variant: Mapping[str, Any], world: World, folder: Path) -> Step:
    """Return a function from a number of steps to the seconds per step, without the constant cost of a run."""
    settings = replace(settings_for(arguments), **variant.get("settings", {}))
    pixels, labels = random_images(4 * arguments.batch_size, arguments.image_size)
    images = load_images(pixels, settings, training=True, device=world.device)
    targets, train_mask = torch.from_numpy(labels).to(world.device), np.ones(len(labels), dtype=np.bool_)
    every = variant.get("checkpoint_steps")

    def seconds(steps: int) -> float:
        checkpointer = (
            Checkpointer(Checkpoints(folder), stop_and_save_flags(), world=world, steps=every) if every else None
        )

        def run() -> None:
            micro_batch = variant.get("micro_batch", arguments.batch_size)
            train(
                replace(settings, steps=steps),
                TrainData(images, targets, train_mask),
                world=world,
                log=RunLog.silent(),
                options=RunOptions(micro_batch=micro_batch, checkpointer=checkpointer),
            )

        elapsed = seconds_of(run)
        if checkpointer:
            checkpointer.clear()
        return elapsed

    return lambda steps: (seconds(1 + steps) - seconds(1)) / steps


def main() -> None:
    """Print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--simulated-workers", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows: list[Row] = []
    with distributed.join_process_group("auto") as world, tempfile.TemporaryDirectory() as folder:
        plain = timed(arguments, {}, world, Path(folder))
        plain(1)
        for name, variant in variants(arguments).items():
            changed = timed(arguments, variant, world, Path(folder))
            changed(1)
            pairs = [(plain(arguments.steps), changed(arguments.steps)) for _ in range(arguments.rounds)]
            ratios = [changed_s / plain_s for plain_s, changed_s in pairs]
            median_s = float(np.median([plain_s for plain_s, _ in pairs]))
            rows.append({"variant": name, "plain_s_per_step": round(median_s, 4), **ratio_spread(ratios)})
    print_results(arguments, rows)


if __name__ == "__main__":
    main()
