"""A study's finished runs with all that may tell them from runs of other studies."""

import json
from pathlib import Path
from typing import Any

from pipeline.artifacts.tables import read_parquet
from pipeline.config.networks import architecture_of, replicate_of
from pipeline.config.prepare import Storage
from pipeline.errors import InputError

_COLUMNS = (
    "study", "fingerprint", "status", "arm", "filter_network", "model", "batch_size", "learning_rate", "weight_decay",
    "bn_group", "seed", "steps", "epochs", "top1", "settings",
)  # fmt: skip
_AS_THEY_ARE = (
    "study", "fingerprint", "arm", "model", "batch_size", "learning_rate", "weight_decay", "bn_group", "seed",
    "steps", "epochs", "top1",
)  # fmt: skip
# Of the settings: what has a column or a key of its own here, and what does not decide how good a network gets.
_NOT_RECIPE = frozenset(
    {
        "network", "batch_size", "weight_decay", "bn_group", "simulated_workers", "seed", "steps", "crop_padding",
        "crop_area", "flip", "threads", "reduction", "noise_scale_steps",
        "accuracy_steps", "accuracy_examples", "format",
    }
)  # fmt: skip


def read_trials(runs: Path, storage: Storage) -> list[dict[str, Any]]:
    """The finished cells of data/train/<study>.parquet, in the order of the file.

    Returns:
        Columns of the file; `extractor` and `draw` (which replicate) of the filter's network, `augmented` (whether
        images are cropped at random or flipped) and `recipe` (the other settings, the peak learning rate among them).

    Raises:
        InputError: the file is missing or damaged, or its settings are none.
    """
    rows = read_parquet(runs, _COLUMNS).to_pylist()
    return [_trial(row, runs, storage) for row in rows if row["status"] == "finished"]


def _trial(row: dict[str, Any], path: Path, storage: Storage) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = json.loads(row["settings"])
        seen, padding = settings["format"], settings["crop_padding"]
        cropped = storage == "files" or seen["crop_size"] < seen["image_size"] + 2 * padding
    except (TypeError, KeyError, ValueError):
        raise InputError(f"{path}: a run whose settings cannot be read; run `dvc repro --force`") from None
    recipe = {key: value for key, value in settings.items() if key not in _NOT_RECIPE}
    return {
        **{name: row[name] for name in _AS_THEY_ARE},
        "extractor": architecture_of(row["filter_network"]),
        "draw": replicate_of(row["filter_network"]),
        "augmented": bool(cropped or settings["flip"]),
        "recipe": json.dumps(recipe, sort_keys=True),
    }
