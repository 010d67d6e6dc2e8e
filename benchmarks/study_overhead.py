"""Measure how much longer a study takes than its training.

Trains a study of a few runs of about `--seconds` each on random images, with evaluation, BatchNorm statistics, run
cache and tables, by the code of the stage in this process. Prints two values:

* `results_share`: the time for results after training (BatchNorm statistics, test images, ledger, saved weights)
  over the time of the optimizer steps, both from the same runs.
* `overhead`: the extra time of the study relative to the same steps on one fixed batch, timed before and after. The
  start of the process is measured separately: the same command in a new process, when nothing is left to train.

    python -m benchmarks.study_overhead --cells 3 --seconds 10
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from ruamel.yaml import YAML

from benchmarks.loop_speed import N_CLASSES, bare_training, random_images, settings_for
from benchmarks.measuring import print_results, seconds_of
from pipeline import distributed
from pipeline.artifacts.files import write_array, write_json
from pipeline.artifacts.tables import write_csv, write_parquet
from pipeline.paths import DataPaths
from pipeline.runs import execution
from pipeline.runs.ledger import Ledger
from pipeline.stages import train as train_stage
from pipeline.training import eval_weights
from pipeline.training.step import TrainStep

NETWORK = "resnet18"
RESULTS = {
    "statistics": (eval_weights, "recompute_batch_norm_statistics"),
    "evaluation": (execution, "evaluate"),
    "ledger": (Ledger, "add"),
    "weights": (execution, "save_trained"),
}
"""Work after the training of a run -> owner and name of its function."""

STEPS = (TrainStep, "run_step")


def write_project(folder: Path, arguments: argparse.Namespace, **train: Any) -> None:
    """Write prepared images, kept.csv, and params.yaml with one study; `train` overrides keys of that section."""
    data = DataPaths(root=folder / "data")
    names = [str(label) for label in range(N_CLASSES)]
    counts = {"train": arguments.images, "test": arguments.images // 5}
    for split, count in counts.items():
        pixels, labels = random_images(count, arguments.image_size)
        paths = [f"{split}/{row:06}.png" for row in range(count)]
        write_array(data.images(split), pixels)
        columns = {"sample_id": np.arange(count), "path": paths, "label": labels}
        named = {"label_name": [names[label] for label in labels], "sha256": paths}
        write_parquet(data.manifest(split), pa.table({**columns, **named}))
        if split == "train":
            kept = pa.table({"sample_id": columns["sample_id"], "path": paths, "label_name": named["label_name"]})
            write_csv(data.kept(NETWORK), kept)
    sizes = {f"n_{split}": count for split, count in counts.items()}
    channels = {"mean": [0.5] * 3, "std": [0.25] * 3}
    write_json(data.prepare_metrics, {"class_names": names, "image_size": arguments.image_size, **channels, **sizes})
    yaml = YAML(typ="safe", pure=True)
    params = yaml.load(Path("presets/digits.yaml").read_text(encoding="utf-8"))
    params["prepare"]["image_size"] = arguments.image_size
    defaults = {"schedule": {"name": "cosine"}, "augmentation": {"crop_padding": 4, "flip": True}}
    params["train"] |= {**defaults, **train}
    params["studies"] = {
        "cells": {
            "filter_network": NETWORK, "models": [arguments.network], "arms": ["full"],
            "batch_sizes": [arguments.batch_size], "learning_rates": [0.01], "weight_decays": [5e-4],
            "seeds": list(range(arguments.cells)), "budget": {"steps": arguments.steps},
        }
    }  # fmt: skip
    with (folder / "params.yaml").open("w", encoding="utf-8") as file:
        yaml.dump(params, file)


def stage_arguments(folder: Path) -> list[str]:
    """Return the arguments of `python` that train the study."""
    paths = {"--params": "params.yaml", "--data": "data", "--work": "work"}
    options = [part for option, name in paths.items() for part in (option, str(folder / name))]
    return ["-m", "pipeline.stages.train", "--study", "cells", *options]


def run_study(folder: Path) -> None:
    """Run the stage in this process."""
    with patch.object(sys, "argv", stage_arguments(folder)[1:]):
        train_stage.main()


@contextmanager
def timing(owner: Any, name: str) -> Iterator[list[float]]:
    """Inside the context, append the seconds of each call of `owner.name` to the list."""
    function, seconds = getattr(owner, name), []

    def timed(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            seconds.append(time.perf_counter() - start)

    with patch.object(owner, name, timed):
        yield seconds


def run_in_new_process(folder: Path) -> None:
    """Run the stage in a new process."""
    subprocess.run([sys.executable, *stage_arguments(folder)], check=True, stderr=subprocess.DEVNULL)


def main() -> None:
    """Print the share and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--network", default=NETWORK)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--cells", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of the bare training of a run")
    arguments = parser.parse_args()
    with distributed.join_process_group("auto") as world:
        bare = bare_training(settings_for(arguments), world)
        bare(2)
        step_s = min(seconds_of(lambda: bare(5)) for _ in range(3)) / 5
        arguments.steps = max(1, round(arguments.seconds / step_s))
        bare_s = [seconds_of(lambda: bare(arguments.steps))]
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            write_project(Path(folder), arguments)
            parts = {name: stack.enter_context(timing(*function)) for name, function in RESULTS.items()}
            steps = stack.enter_context(timing(*STEPS))
            study = seconds_of(lambda: run_study(Path(folder)))
            start = seconds_of(lambda: run_in_new_process(Path(folder)))
        bare_s.append(seconds_of(lambda: bare(arguments.steps)))
    training = arguments.cells * float(np.mean(bare_s))
    row = {
        "cells": arguments.cells, "steps": arguments.steps,
        **{f"{name}_s": round(sum(seconds), 2) for name, seconds in parts.items()}, "steps_s": round(sum(steps), 1),
        "results_share": round(sum(map(sum, parts.values())) / sum(steps), 3),
        "study_s": round(study, 1), "bare_s": " ".join(f"{s:.2f}" for s in bare_s),
        "overhead": round(study / training - 1, 3),
        "start_s": round(start, 1), "overhead_with_start": round((study + start) / training - 1, 3),
    }  # fmt: skip
    print_results(arguments, [row])


if __name__ == "__main__":
    main()
