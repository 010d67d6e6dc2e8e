"""The parameters of the table: those of presets/audit.yaml, with the recipe of ResNet-18 and the noise's networks."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipeline.config.params import Params, check_params

_PRESET = Path(__file__).parents[2] / "presets" / "audit.yaml"

# As in docs/results/label-noise, from scratch: the default before there was a network for small images.
_RESNET18: dict[str, Any] = {
    "weights": "none",
    "stem": "imagenet",
    "batch_size": 256,
    "learning_rate": 0.1,
    "weight_decay": 5e-4,
    "optimizer": {"name": "sgd", "momentum": 0.9, "nesterov": True},
    "schedule": {"name": "cosine"},
    "decay_norm_and_bias": False,
    "augmentation": {"crop_padding": 4, "flip": True},
    "budget": {"epochs": 1},
    "seed": 0,
}

NOISE_NETWORKS = ("resnet34", "resnet50")
"""Networks that give wrong labels. No ResNet-9, wide or not, and no ResNet-18, since these are audited: an audited
network cannot see its own confusions. No network of torchvision, since none can be an extractor, and none of timm,
which enlarges the images to its inputs. Three epochs in two folds take about 35 minutes of one core."""


def audit_params(archive: Path, network: str, *, side: int | None) -> Params:
    """Return the parameters of an audit by `resnet9` or `resnet9_wide`, or by `resnet18` with its recipe.

    Args:
        archive: of the images.
        side: of the images in pixels; None for that of the preset.

    Raises:
        InputError: the preset is not valid.
    """
    tree = _tree(archive, (network,), side)
    if network == "resnet18":
        tree["finetune"] = _RESNET18
    return check_params(tree, source=f"{_PRESET} for {network}")


def noise_params(archive: Path, *, epochs: float, side: int | None) -> dict[str, Any]:
    """Return the parameters of the networks that give wrong labels, out of two folds, as a tree.

    Raises:
        InputError: the preset is not valid.
    """
    tree = _tree(archive, NOISE_NETWORKS, side)
    schedule = {"name": "one_cycle", "rise": 0.2}
    tree["finetune"] = {**_RESNET18, "schedule": schedule, "budget": {"epochs": epochs}, "folds": 2}
    # Mirror images would double the time of the extraction, and the labels need not be the best guess.
    tree["extract"]["flip_tta"] = False
    check_params(tree, source=f"{_PRESET} for the networks of the noise")
    return tree


def _tree(archive: Path, networks: tuple[str, ...], side: int | None) -> dict[str, Any]:
    tree: dict[str, Any] = YAML(typ="safe", pure=True).load(_PRESET)
    tree["prepare"] |= {"dataset": "image_folder", "path": str(archive)}
    if side is not None:
        tree["prepare"]["image_size"] = side
    tree["networks"] = list(networks)
    # One thread, as in training next to other work: another number gives another embedding.
    tree["reduce"]["tsne"]["n_jobs"] = 1
    for study in tree["studies"].values():
        study |= {"filter_network": networks[0], "needs": f"filter/{networks[0]}"}
    return tree
