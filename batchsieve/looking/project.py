"""The result of `look` as a folder that the visualizer opens: the pipeline's artifacts of one network."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from ruamel.yaml import YAML

from batchsieve.looking.result import Look
from batchsieve.looking.sources import thumbnail_pixels
from pipeline.artifacts.files import atomic_path, write_array, write_json
from pipeline.artifacts.overrides import locate_overrides, read_overrides, write_overrides
from pipeline.artifacts.tables import list_array, write_csv, write_parquet
from pipeline.config.extractors import is_of_timm
from pipeline.config.filter import FilterConfig
from pipeline.errors import InputError
from pipeline.filtering.apply import FilterContext, sieve
from pipeline.filtering.tables import filter_metrics, kept_and_dropped, points_table
from pipeline.paths import DataPaths
from pipeline.scoring.base import ScorerInputs

_SIDE = 96  # pixels

# Of the scorers that need no record of a training, the one whose order is closest to `label_odds`.
_FILTER = {"scorer": {"name": "margin"}, "drop_fraction": "estimated", "allow_empty": True}

_SCHEDULE = {"name": "cosine"}
_OPTIMIZER = {"name": "sgd", "momentum": 0.9, "nesterov": True}


def check_project_folder(folder: Path) -> None:
    """Check that a folder is missing, empty, or written by `write_project`.

    Raises:
        InputError: it is not.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; the visualizer's files need a folder of this name")
    if folder.is_dir() and any(folder.iterdir()) and not _params(folder).is_file():
        raise InputError(f"{folder}: has other files; the visualizer's files need an empty folder of this name")


def write_project(look: Look, folder: Path) -> None:
    """Write params.yaml and data/ of the visualizer; decisions of an earlier look in data/overrides.csv stay.

    Raises:
        InputError: the folder has other files; or its decisions are about images that are not there.
    """
    check_project_folder(folder)
    data, network = DataPaths(root=folder / "data"), look.extractor
    class_names = [str(name) for name in look.class_names]
    number = {name: code for code, name in enumerate(look.class_names.tolist())}
    codes = np.array([number[label] for label in look.issues.label.tolist()], dtype=np.int64)
    paths, sha256 = look.path.tolist(), look.sha256.tolist()
    decided = read_overrides(data.overrides) if data.overrides.exists() else []
    overrides = locate_overrides(decided, file=data.overrides, paths=paths, sha256=sha256, class_names=class_names)
    inputs = ScorerInputs(
        labels=codes,
        embeddings=look.coordinates[None],
        components=look.components,
        neighbors=look.neighbors,
        probabilities=look.probabilities,
    )
    config = FilterConfig.model_validate(_FILTER)
    context = FilterContext(network=network, class_names=class_names, overrides=overrides)
    filtered = sieve(inputs, config, context, fix="give more images")
    manifest = pa.table(
        {
            "sample_id": np.arange(len(look)),
            "path": pa.array(paths, pa.string()),
            "label": codes,
            "label_name": pa.array([class_names[code] for code in codes], pa.string()),
            "sha256": pa.array(sha256, pa.string()),
        }
    )
    predicted, confidence = look.probabilities.argmax(axis=1), look.probabilities.max(axis=1)
    images = manifest.append_column("predicted", pa.array(predicted)).append_column("confidence", pa.array(confidence))
    points = points_table(images, inputs, filtered, class_names)
    kept, dropped = kept_and_dropped(points)
    write_array(data.images("train"), thumbnail_pixels(look.thumbnails, _SIDE))
    write_parquet(data.manifest("train"), manifest)
    write_json(data.prepare_metrics, {"class_names": class_names, "image_size": _SIDE})
    write_array(data.training_confidence(network), np.full(len(look), np.nan, dtype=np.float32))
    write_array(data.probabilities(network), look.probabilities)
    predictions = images.select(["sample_id", "predicted", "confidence"])
    write_parquet(
        data.predictions(network), predictions.append_column("fold", pa.array(np.zeros(len(look), dtype=np.int32)))
    )
    write_array(data.components(network), look.components)
    write_array(data.embeddings(network), look.coordinates[None])
    write_parquet(
        data.embedding(network),
        pa.table({"sample_id": np.arange(len(look)), "neighbours": list_array(look.neighbors)}),
    )
    write_parquet(data.points(network), points)
    write_csv(data.kept(network), kept)
    write_csv(data.dropped(network), dropped)
    write_json(data.filter_metrics(network), filter_metrics(inputs, filtered, config, context))
    if not data.overrides.exists():
        write_overrides(data.overrides, [])
    _write_params(folder, look)


def _params(folder: Path) -> Path:
    return folder / "params.yaml"


def _write_params(folder: Path, look: Look) -> None:
    """Write what the visualizer reads of params.yaml; the other keys complete it, and no stage runs by them."""
    network, frozen = look.extractor, is_of_timm(look.extractor)
    recipe = {"optimizer": _OPTIMIZER, "schedule": _SCHEDULE, "decay_norm_and_bias": False, "augmentation": {}}
    pretrained = {"weights": "pretrained", "trainable": "head"} if frozen else {"weights": "none"}
    tree = {
        "prepare": {"dataset": "image_folder", "path": look.name, "image_size": _SIDE},
        "networks": [network],
        "finetune": {
            **recipe, **pretrained, "folds": 5, "stem": "imagenet", "batch_size": 64, "learning_rate": 0.02,
            "weight_decay": 5e-4, "budget": {"epochs": 10},
        },
        "extract": {},
        "reduce": {"n_neighbors": look.neighbors.shape[1]},
        "filter": _FILTER,
        "train": {**recipe, "stem": "imagenet", "simulated_workers": 1},
        "studies": {
            "look": {
                "filter_network": network, "needs": f"filter/{network}", "models": ["resnet18"],
                "arms": ["full", "filtered", "random"], "batch_sizes": [64], "learning_rates": [0.02],
                "weight_decays": [5e-4], "seeds": [0], "budget": {"epochs": 10},
            }
        },
        "report": {"margin": 0.5, "primary": "random"},
    }  # fmt: skip
    with atomic_path(_params(folder)) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write("# Of `batchsieve look --serve`, for the visualizer. No stage ran by it.\n")
        YAML(typ="safe", pure=True).dump(tree, file)
