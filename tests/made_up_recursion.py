"""A tiny project that `recurse` can work on, with images in wrong folders among the others."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from made_up import NETWORK, write_params
from made_up_images import encode, write_folder
from numpy.typing import NDArray
from PIL import Image

from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.overrides import Override, write_overrides
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.commands.recursion.first_round import STAGES
from pipeline.config.params import load_params
from pipeline.paths import DataPaths, WorkPaths
from pipeline.stages.harness import run_stage
from pipeline.stages.prepare import prepare

SIZE = 16
CLASSES = ("ash", "birch", "cedar", "dogwood")
PER_CLASS, PER_CLASS_TEST = 30, 6
N = len(CLASSES) * PER_CLASS
WRONG = tuple((i, (i + 1 + k) % 4) for i in range(4) for k in range(2))
"""Of each planted image the class whose folder it is in, and the class that it shows."""


def write_images(folder: Path) -> Path:
    """Classes differ in their colour; the first two training images of each class show another one."""
    rng = np.random.default_rng(0)
    files = {}
    for split, count in (("train", PER_CLASS), ("test", PER_CLASS_TEST)):
        for label, name in enumerate(CLASSES):
            shown = [wrong for where, wrong in WRONG if where == label] if split == "train" else []
            for i in range(count):
                files[f"{split}/{name}/{i:02}.png"] = _image(rng, shown[i] if i < len(shown) else label)
    return write_folder(folder, files)


def _image(rng: np.random.Generator, shown: int) -> bytes:
    colours = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200], [180, 180, 60]])
    noisy = colours[shown] + rng.integers(-60, 61, (SIZE, SIZE, 3))
    return encode(Image.fromarray(noisy.clip(0, 255).astype(np.uint8)))


def is_planted(paths: Sequence[str]) -> NDArray[np.bool_]:
    """Which training images are in the folder of another class."""
    per_class = len(WRONG) // len(CLASSES)
    return np.array([int(Path(path).stem) < per_class for path in paths])


def write_project(folder: Path, **sections: Mapping[str, Any]) -> DataPaths:
    """Parameters, images and data/prepare in `folder`; `sections` are keys that differ from those here."""
    short = {
        "schedule": {"name": "cosine"},
        "augmentation": {},
        "batch_size": 20,
        "budget": {"steps": 30},
        "threads_per_worker": 1,
        "checkpoint": {"steps": 3},
    }
    tsne = {"perplexity": 10.0, "n_jobs": 1, "random_state": 0, "early_exaggeration_iter": 100, "n_iter": 200}
    defaults: dict[str, dict[str, Any]] = {
        "prepare": {
            "dataset": "image_folder",
            "path": str(write_images(folder / "images")),
            "image_size": SIZE,
            "test_share": None,
        },
        "finetune": short,
        "train": {"augmentation": {}},
        "reduce": {"pca": {"n_components": 10}, "tsne": tsne, "neighbors": 5},
        "filter": {"scorer": {"name": "dbscan", "space": "map", "min_samples": 3}, "drop_share": 0.1},
    }
    names = {**defaults, **sections}
    write_params(folder, **{name: {**defaults.get(name, {}), **sections.get(name, {})} for name in names})
    run_stage("prepare", prepare, argv=_places(folder))
    data = DataPaths(root=folder / "data")
    write_overrides(data.overrides, [])
    return data


def pretend_first_round(folder: Path, *, overrides: Sequence[Override] = ()) -> None:
    """What `recurse` reads of the stages after `prepare`: every tenth image is suspect, people decide the rest."""
    data, params = DataPaths(root=folder / "data"), load_params(folder / "params.yaml")
    images = read_parquet(data.manifest("train"), ["path", "sha256"])
    noise = np.arange(len(images)) % 10 == 5
    keep = ~noise
    for override in overrides:
        keep[images["path"].to_pylist().index(override.path)] = override.decision == "keep"
    columns = {"path": images["path"], "sha256": images["sha256"], "is_noise": noise, "keep": keep}
    write_parquet(data.points(NETWORK), pa.table(columns))
    write_json(data.finetune_metrics(NETWORK), {"top1": 0.5})
    write_overrides(data.overrides, overrides)
    for stage in STAGES:
        parameters = getattr(params, stage).model_dump(mode="json")
        path = data.provenance(stage, NETWORK)
        write_provenance(path, stage=stage, parameters=parameters, inputs=[], outputs=[])


def by_hand(data: DataPaths, row: int, decision: str) -> Override:
    """A person's decision on a training image."""
    images = read_parquet(data.manifest("train"), ["path", "sha256"])
    path, sha256 = (images[column][row].as_py() for column in ("path", "sha256"))
    return Override(path=path, sha256=sha256, decision=decision, note="seen", timestamp="2026-01-01", line=0)


def recurse_arguments(folder: Path, *options: str) -> list[str]:
    """Of `python -m pipeline`."""
    return ["recurse", "--network", NETWORK, *options, *_places(folder)]


def recurse_command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "pipeline", *recurse_arguments(folder, *options)]


def round_folder(folder: Path, number: int) -> Path:
    return WorkPaths(root=folder / "work").recursion(NETWORK) / f"round-{number}"


def results(folder: Path) -> dict[str, bytes]:
    """File -> content of all that a recursion hands to people."""
    data = DataPaths(root=folder / "data")
    return {path.name: path.read_bytes() for path in data.recursive_rounds(NETWORK).parent.iterdir()}


def _places(folder: Path) -> list[str]:
    places = {"--params": folder / "params.yaml", "--data": folder / "data", "--work": folder / "work"}
    return [str(part) for pair in places.items() for part in pair]
