"""The best network of each study for other tools: best.pt, model.safetensors, config.json and a model card."""

import dataclasses
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save

from pipeline.artifacts.files import atomic_path, write_bytes, write_json, write_text
from pipeline.artifacts.prepared import PLANTED_COLUMN, planted_note
from pipeline.artifacts.tables import read_parquet
from pipeline.errors import InputError
from pipeline.paths import DataPaths
from pipeline.training.weights import TrainedNetwork, load_trained

_COLUMNS = [
    "status", "model", "arm", "filter_network", "batch_size", "learning_rate", "weight_decay", "seed", "n_train",
    "steps", "top1", "balanced_accuracy",
]  # fmt: skip
_VARIANT = ("model", "arm", "filter_network", "batch_size", "learning_rate", "weight_decay")
_MAX_LISTED = 1_000  # classes in the card; config.json has all


def write_networks(
    data: DataPaths, studies: Sequence[str], out: Path, *, n_test: int, n_planted: int | None = None
) -> list[str]:
    """Write `out`/<study>/ of each study that has a trained network.

    Args:
        n_test: number of test images.
        n_planted: number of training labels that were changed on purpose, which all files state; None if none was.

    Returns:
        The studies whose network was written.

    Raises:
        InputError: a file of a study is damaged, or its table has another network than its weights.
    """
    written, note = [], "" if n_planted is None else f"{planted_note(n_planted)}."
    for study in studies:
        weights = data.trained_weights(study)
        # A study of which no run finished has an empty file.
        if not weights.exists() or not weights.stat().st_size:
            continue
        network = load_trained(weights)
        rows = read_parquet(data.runs(study), _COLUMNS).to_pylist()
        run = best_run(rows)
        if run is None or run["model"] != network.network:
            raise InputError(f"{data.runs(study)}: has no run of the network in {weights}; run `dvc repro --force`")
        card = _card(study, network, run, rows, n_test=n_test, note=note)
        _write(out / study, weights, network, card, {} if n_planted is None else {PLANTED_COLUMN: n_planted})
        written.append(study)
    return written


def best_run(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the run whose weights are in best.pt: the first seed of the setting with the highest mean top-1."""
    accuracies: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    firsts: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        variant = tuple(row[name] for name in _VARIANT)
        if row["status"] == "finished":
            accuracies[variant].append(row["top1"])
            if row["seed"] == rows[0]["seed"]:
                firsts[variant] = row
    best = max(firsts, key=lambda variant: float(np.mean(accuracies[variant])), default=None)
    return None if best is None else firsts[best]


def _write(folder: Path, weights: Path, network: TrainedNetwork, card: str, planted: Mapping[str, int]) -> None:
    """Write the files of a network; `planted` is added to what they state of it."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(folder / "best.pt") as temporary:
        shutil.copyfile(weights, temporary)
    state = {name: tensor.contiguous() for name, tensor in network.model.state_dict().items()}
    write_bytes(folder / "model.safetensors", save(state, {name: str(n) for name, n in planted.items()} or None))
    config = {
        "architecture": network.network,
        "class_names": list(network.class_names),
        **dataclasses.asdict(network.format),
        "resizing": network.resizing,
        **planted,
    }
    write_json(folder / "config.json", config)
    write_text(folder / "README.md", card)


def _card(
    study: str,
    network: TrainedNetwork,
    run: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    *,
    n_test: int,
    note: str,
) -> str:
    same = [row for row in rows if row["status"] == "finished" and all(row[name] == run[name] for name in _VARIANT)]
    mean = float(np.mean([row["top1"] for row in same]))
    chosen = {
        "full": "all training images",
        "filtered": f"the images that the filter of {run['filter_network']} keeps",
        "random": "a random choice of as many images of each class as the filter keeps",
        "random_uniform": "a random choice of as many images as the filter keeps",
        "relabeled": "all training images, some with the suggested label or one given by hand",
    }[run["arm"]]
    side, crop = network.format.image_size, network.format.crop_size
    resized = (
        f"The center crop of {crop} pixels is taken, after the shorter side is scaled to {crop} * 256 / 224 pixels."
        if network.resizing == "center_crop"
        else f"Images are scaled to {side}x{side} pixels, whatever their aspect ratio."
    )
    names = list(network.class_names)
    listed = ", ".join(names[:_MAX_LISTED]) + (", ... (config.json has all)" if len(names) > _MAX_LISTED else "")
    # One line, whatever a class is called.
    listed = " ".join(listed.split())
    return f"""---
library_name: pytorch
pipeline_tag: image-classification
tags:
- batchsieve
---

# {network.network}, study {study}

A {network.network} that classifies images into {len(names)} classes, trained with batchsieve.

## Use

```python
from batchsieve import load_trained

network = load_trained("best.pt")
network.predict(["image.jpg"])          # class names; paths, PIL images or uint8 arrays of any size
network.predict_proba(["image.jpg"])    # (1, {len(names)}) float32, columns in the order of network.class_names
```

`model.safetensors` has the same weights for other programs, and `config.json` the classes, the size and the
normalization of the images. {resized}

## Training

| | |
|---|---|
| images | {run["n_train"]:,}: {chosen} (arm {run["arm"]}) |
| batch size | {run["batch_size"]:,} |
| optimizer steps | {run["steps"]:,} |
| learning rate, weight decay | {run["learning_rate"]:g}, {run["weight_decay"]:g} |
| seed | {run["seed"]} |

## Accuracy

| on {n_test:,} test images | |
|---|---|
| top-1 of this network | {run["top1"]:.2%} |
| balanced accuracy of this network | {run["balanced_accuracy"]:.2%} |
| mean top-1 of the {len(same)} seeds of this setting | {mean:.2%} |

The setting is the one with the highest mean accuracy on these test images, so its accuracy is slightly too high.
Whether the filter helped is a question for the report's verdict, which chooses nothing by test images. {note}

## Classes

{listed}

## Limits

The probabilities are not calibrated. Images of other sources than the training images were not tested. No license is
stated here: that of the training images may apply.
"""
