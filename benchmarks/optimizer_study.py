"""Compare optimizers at several batch sizes, with learning rates chosen on `val`.

For each optimizer and batch size the study tries the learning rates of a log-spaced grid with one seed on the training
images that are not in `val`. While the best rate on `val` is at an edge, the grid grows there. With the best rate,
several seeds are trained and evaluated once on the test images. At a batch size every run takes the same number of
steps. Finished runs are stored in `--work`, so that an interrupted study resumes.

    python -m benchmarks.optimizer_study --data data --work .work/optimizers --out docs/results/FOLDER
"""

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline import distributed
from pipeline.artifacts.files import write_json
from pipeline.artifacts.prepared import PreparedData, load_prepared, prepared_digest
from pipeline.artifacts.tables import read_parquet
from pipeline.distributed import World
from pipeline.paths import DataPaths
from pipeline.run_log import stderr_log
from pipeline.runs.arm_rows import TrainRows
from pipeline.runs.execution import LoadedSplits, execute_run
from pipeline.runs.grid import RunSpec
from pipeline.runs.ledger import Ledger, RunResult
from pipeline.training.run_key import run_key
from pipeline.training.run_options import RunOptions
from pipeline.training.settings import ImageFormat, TrainSettings

OPTIMIZERS: Mapping[str, tuple[Mapping[str, Any], float]] = {
    "sgd": ({"momentum": 0.9, "nesterov": True}, 0.05),
    "radam": ({"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}, 3e-3),
    "lars": ({"momentum": 0.9, "nesterov": False, "trust_coefficient": 1e-3}, 5.0),
    "lamb": ({"beta1": 0.9, "beta2": 0.999, "eps": 1e-6}, 1e-2),
    "muon": ({"momentum": 0.95, "nesterov": True}, 2e-2),
}
"""Name -> options, and the middle of the grid of learning rates at batch 256, near the rates of the papers."""

FACTOR = 2.0
REFERENCE_BATCH = 256


def settings_for(
    data: PreparedData, optimizer: str, rate: float, batch_size: int, steps: int, seed: int
) -> TrainSettings:
    """Return the shared settings: cosine after a warm-up of 10 % of the steps, no decay of BatchNorm and biases."""
    return TrainSettings(
        network="resnet18", stem="imagenet", n_classes=len(data.class_names),
        format=ImageFormat(image_size=data.image_size, crop_size=data.image_size, mean=data.mean, std=data.std),
        crop_padding=4, flip=True, batch_size=batch_size, simulated_workers=max(1, batch_size // REFERENCE_BATCH),
        steps=steps, optimizer=optimizer, optimizer_options=dict(OPTIMIZERS[optimizer][0]), learning_rate=rate,
        weight_decay=5e-4, decay_norm_and_bias=False, schedule="cosine", schedule_options={},
        warmup_steps=steps // 10, label_smoothing=0.1, seed=seed,
    )  # fmt: skip


class Runner:
    """Trains the runs that are not in the ledger."""

    def __init__(self, arguments: argparse.Namespace, world: World) -> None:
        paths = DataPaths(root=arguments.data)
        self.data, self._world = load_prepared(paths, folder=None), world
        self._ledger, self._log = Ledger(arguments.work / "cells"), stderr_log(None)
        manifest = read_parquet(paths.manifest("train"), ["val", "label"])
        val = manifest["val"].to_numpy(zero_copy_only=False)
        rest = np.flatnonzero(~val)
        # The first images of a fixed random order: class shares are about those of all images.
        chosen = np.random.default_rng(0).permutation(rest)[: arguments.images]
        self._train_mask = np.zeros(len(val), dtype=np.bool_)
        self._train_mask[chosen] = True
        self._digest = prepared_digest(paths)
        test = LoadedSplits(
            train_images=self.data.train.images,
            test_images=self.data.test.images,
            test_labels=self.data.test.labels,
            class_names=self.data.class_names,
        )
        rows = np.flatnonzero(val)
        held_out = replace(test, test_images=self.data.train.images[rows], test_labels=self.data.train.labels[rows])
        self._splits = {"val": held_out, "test": test}

    def top1(self, settings: TrainSettings, split: str) -> float:
        """Return the top-1 of one run on `val` or `test`; 0 if it diverged."""
        digest = f"{self._digest} measured on {split}"
        key = run_key(
            settings, self._train_mask, data_digest=digest, device=self._world.device, threads=torch.get_num_threads()
        )
        if not self._ledger.has(key.fingerprint):
            result = self._run(settings, split)
            if self._world.is_main:
                self._ledger.add(key, result)
            distributed.barrier()
        return self._ledger.get(key.fingerprint).top1 or 0.0

    def _run(self, settings: TrainSettings, split: str) -> RunResult:
        spec = RunSpec(
            arm="full",
            filter_network="",
            learning_rate=settings.learning_rate,
            n_train=int(self._train_mask.sum()),
            settings=settings,
        )
        title = f"{settings.optimizer}, batch {settings.batch_size}, rate {settings.learning_rate:g}, {split}"
        rows = TrainRows(mask=self._train_mask, labels=self.data.train.labels)
        return execute_run(
            spec, self._splits[split], rows, world=self._world, log=self._log, weights=None,
            eval_batch_size=500, options=RunOptions(title=title),
        )  # fmt: skip


def search(runner: Runner, optimizer: str, batch_size: int, steps: int, points: int) -> dict[float, float]:
    """Return learning rate -> top-1 on `val`; rates on both sides of the best one are included."""
    middle = OPTIMIZERS[optimizer][1] * (batch_size / REFERENCE_BATCH) ** 0.5
    exponents = [index - points // 2 for index in range(points)]
    top1: dict[int, float] = {}
    while True:
        for exponent in exponents:
            settings = settings_for(runner.data, optimizer, middle * FACTOR**exponent, batch_size, steps, seed=0)
            if exponent not in top1:
                top1[exponent] = runner.top1(settings, "val")
        best = max(top1, key=lambda exponent: top1[exponent])
        if min(top1) < best < max(top1):
            return {middle * FACTOR**exponent: top1[exponent] for exponent in sorted(top1)}
        exponents = [best - 1, best + 1]


def study(runner: Runner, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per optimizer and batch size."""
    rows = []
    for (batch_size, steps), optimizer in itertools.product(arguments.grid, arguments.optimizers):
        on_val = search(runner, optimizer, batch_size, steps, arguments.points)
        rate = max(on_val, key=lambda candidate: on_val[candidate])
        base = settings_for(runner.data, optimizer, rate, batch_size, steps, seed=0)
        tests = [runner.top1(replace(base, seed=seed), "test") for seed in range(1, 1 + arguments.seeds)]
        rows.append(
            {
                "batch_size": batch_size, "steps": steps, "optimizer": optimizer, "rate": rate,
                "val": {f"{candidate:.4g}": round(top1, 4) for candidate, top1 in on_val.items()},
                "test_mean": round(float(np.mean(tests)), 4),
                "test_sd": round(float(np.std(tests, ddof=1)), 4) if len(tests) > 1 else None,
                "n": len(tests),
            }
        )  # fmt: skip
        report(rows)
    return rows


def report(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table so far."""
    print(
        f"\n{'batch':>6} {'steps':>6}  {'optimizer':9} {'rate':>9} {'tried':>6} {'test top-1':>11} {'sd':>7} {'n':>3}"
    )
    for row in rows:
        spread = f"{row['test_sd']:7.2%}" if row["test_sd"] is not None else "      -"
        print(
            f"{row['batch_size']:6d} {row['steps']:6d}  {row['optimizer']:9} {row['rate']:9.4g} {len(row['val']):6d} "
            f"{row['test_mean']:11.2%} {spread} {row['n']:3d}"
        )


def batch_and_steps(text: str) -> tuple[int, int]:
    """Parse `256:100`: batch 256 for 100 steps."""
    batch_size, _, steps = text.partition(":")
    return int(batch_size), int(steps)


def main() -> None:
    """Train the missing runs; write and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with prepare/")
    parser.add_argument("--work", type=Path, default=Path(".work/optimizers"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--grid", type=batch_and_steps, nargs="+", default=[(256, 100), (2048, 40), (8192, 16)])
    parser.add_argument("--optimizers", nargs="+", choices=tuple(OPTIMIZERS), default=tuple(OPTIMIZERS))
    parser.add_argument("--images", type=int, default=10_000, help="training images")
    parser.add_argument("--points", type=int, default=7, help="learning rates of the initial grid")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    with distributed.join_process_group("auto") as world:
        rows = study(Runner(arguments, world), arguments)
        if world.is_main:
            versions = {"torch": torch.__version__, "threads": torch.get_num_threads(), "device": str(world.device)}
            write_json(arguments.out / "optimizers.json", {"images": arguments.images, **versions, "rows": rows})
            print(json.dumps(rows))


if __name__ == "__main__":
    main()
