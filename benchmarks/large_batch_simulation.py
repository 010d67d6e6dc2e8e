"""Compare four workers with one process that simulates four.

The experiment of Rand (2021) with a similar network, a small CNN with dropout, in full and in mixed precision, on
scikit-learn's digits. Writes the loss curves as a plot and as JSON.

    python -m benchmarks.large_batch_simulation --out docs/results/FOLDER
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from pipeline import distributed
from pipeline.artifacts.files import atomic_path, read_json, write_json
from pipeline.batching import valid_world_sizes
from pipeline.run_log import RunLog
from pipeline.training.evaluation import load_images
from pipeline.training.loop import TrainData, train
from pipeline.training.settings import ImageFormat, TrainSettings

WORKERS = 4
SIZE = 8
PRECISIONS = ("fp32", "bf16")


def settings_for(precision: Any, steps: int, reduction: Any) -> TrainSettings:
    """Return settings with batch 256 on four workers, dropout and gradient clipping."""
    return TrainSettings(
        network="small_cnn", stem="imagenet", n_classes=10,
        format=ImageFormat(image_size=SIZE, crop_size=SIZE, mean=(0.3,) * 3, std=(0.37,) * 3),
        crop_padding=1, flip=False, batch_size=256, simulated_workers=WORKERS, reduction=reduction,
        threads=1, precision=precision, steps=steps, optimizer="sgd",
        optimizer_options={"momentum": 0.9, "nesterov": True}, learning_rate=0.1, weight_decay=5e-4,
        decay_norm_and_bias=False, schedule="cosine", schedule_options={}, warmup_steps=5,
        label_smoothing=0.0, clip_norm=1.0, seed=0,
    )  # fmt: skip


def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images uint8 (1797, 8, 8, 3) and labels int64 (1797,)."""
    bunch = load_digits()
    gray = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return np.repeat(gray[..., None], 3, axis=3), bunch.target.astype(np.int64)


def run_here(arguments: argparse.Namespace) -> None:
    """Train on the processes of this job; rank 0 writes the loss curve and the final weights."""
    fitting = valid_world_sizes(WORKERS, arguments.reduction)
    pixels, labels = digits()
    settings = settings_for(arguments.precision, arguments.steps, arguments.reduction)
    with distributed.join_process_group(
        1, lambda size: distributed.participating_ranks("auto", fitting, size)
    ) as world:
        images = load_images(pixels, settings, training=True, device=world.device)
        train_mask = np.ones(len(labels), dtype=np.bool_)
        data = TrainData(images, torch.from_numpy(labels).to(world.device), train_mask)
        run = train(settings, data, world=world, log=RunLog.silent())
        if world.is_main:
            weights = torch.cat([tensor.detach().double().flatten().cpu() for tensor in run.model.parameters()])
            torch.save(weights, arguments.out.with_suffix(".pt"))
            write_json(arguments.out, [[record.step, record.train_loss] for record in run.history])


def launch(arguments: Sequence[str], processes: int) -> None:
    """Run this module on one process or, by torchrun, on several, with one thread each."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    command = [sys.executable, *launcher, "-m", "benchmarks.large_batch_simulation", *arguments]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def distance(first: Path, second: Path) -> float:
    """Return the relative L2 distance of the final weights of two runs."""
    a, b = (torch.load(path.with_suffix(".pt"), weights_only=True) for path in (first, second))
    return float((a - b).norm() / a.norm())


def draw(curves: Mapping[str, Sequence[tuple[int, float]]], path: Path) -> None:
    """Draw all curves in one plot; dashes show both of two lines that coincide."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for (name, curve), style in zip(curves.items(), ("-", "--", "-", "--", ":", ":"), strict=False):
        axes.plot(*zip(*curve, strict=True), style, label=name, linewidth=2.5 if style == "-" else 1.5)
    axes.set(xlabel="optimizer step", ylabel="training loss", yscale="log")
    axes.legend()
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="svg")


def main() -> None:
    """Run all jobs, print the distances and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path(".work/large_batch_simulation"), help="folder of the results")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--precision", choices=PRECISIONS, help="train at this precision in this job")
    parser.add_argument("--reduction", choices=("ddp", "exact"), default="ddp")
    arguments = parser.parse_args()
    if arguments.precision:
        run_here(arguments)
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    curves, distances = {}, {}
    for precision in PRECISIONS:
        for reduction in ("ddp", "exact"):
            files = {}
            for processes in (WORKERS, 1):
                file = files[processes] = arguments.out / f"{precision}-{reduction}-{processes}.json"
                options = ["--precision", precision, "--reduction", reduction, "--steps", str(arguments.steps)]
                launch([*options, "--out", str(file)], processes)
                if reduction == "ddp":
                    name = f"{precision}, {'4 workers' if processes > 1 else '1 simulating 4'}"
                    curves[name] = read_json(file)
            distances[f"{precision} {reduction}"] = distance(files[WORKERS], files[1])
    draw(curves, arguments.out / "curves.svg")
    for name, value in distances.items():
        print(f"{name:10} final weights after {arguments.steps} steps differ by {value:.2e} (relative L2)")
    for leftover in arguments.out.glob("*.pt"):
        leftover.unlink()
    print(json.dumps({"steps": arguments.steps, "torch": torch.__version__, "distances": distances}))


if __name__ == "__main__":
    main()
