"""How much longer does a study take than its training?

A study of a few runs of about `--seconds` each is trained on made-up images, with evaluation, BatchNorm statistics,
ledger and tables, by the stage's own code in this process. Its wall time is compared with the same optimizer steps
alone on one fixed batch, timed before and after. What each result needs after its training, forward passes over the
images of the BatchNorm statistics and over the test images, is timed apart in the same way. The start of the process
is what the same command takes once more, in a process of its own, when nothing is left to train.

    python -m benchmarks.study_overhead --cells 3 --seconds 10
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import torch
from ruamel.yaml import YAML

from benchmarks.loop_speed import N_CLASSES, bare_training, made_up_images, settings_for
from benchmarks.measuring import print_results, seconds_of
from pipeline import distributed
from pipeline.artifacts.arrays import write_array
from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.tables import write_csv, write_parquet
from pipeline.distributed import Ranks
from pipeline.models import build
from pipeline.paths import DataPaths
from pipeline.stages import train as train_stage
from pipeline.training.evaluated_weights import statistics_batches

NETWORK = "resnet18"
EVAL_BATCH = 500


def write_project(folder: Path, arguments: argparse.Namespace, **train: Any) -> None:
    """Prepared images, the list of those kept, and parameters of the study; `train` are keys of that section."""
    data = DataPaths(root=folder / "data")
    names = [str(label) for label in range(N_CLASSES)]
    counts = {"train": arguments.images, "test": arguments.images // 5}
    for split, count in counts.items():
        pixels, labels = made_up_images(count, arguments.image_size)
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
    usual = {"schedule": {"name": "cosine"}, "augmentation": {"crop_padding": 4, "flip": True}}
    params["train"] |= {**usual, **train}
    params["studies"] = {
        "cells": {
            "filter_network": NETWORK, "models": [arguments.network], "arms": ["full"],
            "batch_sizes": [arguments.batch_size], "learning_rates": [0.01], "weight_decays": [5e-4],
            "seeds": list(range(arguments.cells)), "budget": {"steps": arguments.steps},
        }
    }  # fmt: skip
    with (folder / "params.yaml").open("w", encoding="utf-8") as file:
        yaml.dump(params, file)


def bare_forward(arguments: argparse.Namespace, ranks: Ranks) -> Callable[[int], None]:
    """Passes over that many images, one fixed batch again and again."""
    model = build(arguments.network, N_CLASSES, stem="imagenet", seed=0).to(ranks.device).eval()
    model = model.to(memory_format=torch.channels_last)
    batch = torch.randn(EVAL_BATCH, 3, arguments.image_size, arguments.image_size, device=ranks.device)
    batch = batch.to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def run(n_images: int) -> None:
        for _ in range(-(-n_images // EVAL_BATCH)):
            model(batch)

    return run


def stage_of(folder: Path) -> list[str]:
    """What follows `python` on the command line that trains the study."""
    places = {"--params": "params.yaml", "--data": "data", "--work": "work"}
    named = [part for option, name in places.items() for part in (option, str(folder / name))]
    return ["-m", "pipeline.stages.train", "--study", "cells", *named]


def run_study(folder: Path) -> None:
    """The stage in this process."""
    with patch.object(sys, "argv", stage_of(folder)[1:]):
        train_stage.main()


def run_again(folder: Path) -> None:
    """The stage in a process of its own."""
    subprocess.run([sys.executable, *stage_of(folder)], check=True, stderr=subprocess.DEVNULL)


def main() -> None:
    """Print the share and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--network", default=NETWORK)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--cells", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of the bare training of a run")
    arguments = parser.parse_args()
    with distributed.session("auto") as ranks:
        bare, forward = bare_training(settings_for(arguments), ranks), bare_forward(arguments, ranks)
        bare(2)
        forward(arguments.batch_size)
        arguments.steps = max(1, round(10 * arguments.seconds / seconds_of(lambda: bare(10))))
        n_statistics = statistics_batches(arguments.steps, arguments.batch_size) * arguments.batch_size
        n_seen = n_statistics + arguments.images // 5
        around, passes = [seconds_of(lambda: bare(arguments.steps))], [seconds_of(lambda: forward(n_seen))]
        with tempfile.TemporaryDirectory() as folder:
            write_project(Path(folder), arguments)
            study = seconds_of(lambda: run_study(Path(folder)))
            start = seconds_of(lambda: run_again(Path(folder)))
        around.append(seconds_of(lambda: bare(arguments.steps)))
        passes.append(seconds_of(lambda: forward(n_seen)))
    training = arguments.cells * float(np.mean(around))
    evaluation = arguments.cells * float(np.mean(passes))
    row = {
        "cells": arguments.cells, "steps": arguments.steps, "statistics_images": n_statistics,
        "study_s": round(study, 1), "training_s": round(training, 1), "forward_passes_s": round(evaluation, 1),
        "overhead": round(study / training - 1, 3),
        "overhead_without_passes": round((study - evaluation) / training - 1, 3),
        "process_start_s": round(start, 1), "overhead_with_start": round((study + start) / training - 1, 3),
        "bare_s_before_and_after": " ".join(f"{s:.2f}" for s in around),
    }  # fmt: skip
    print_results(arguments, [row])


if __name__ == "__main__":
    main()
