"""The plan of the table: its noises, the order of its cells, and the parameters of its networks.

The parameters are those of presets/audit.yaml, with the recipe of ResNet-18 and the noise's networks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from benchmarks.label_noise.cases import CLEAN
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

RATE = 0.09
"""Share of wrong labels or outliers of the main rows."""

CHOICE_SEED = 10
"""Seed of labels that no cell audits: the use of the minutes is chosen on them (`benchmarks.audit_minutes`)."""

NOISE_NETWORKS = ("resnet34", "resnet50")
"""Networks that give wrong labels. No ResNet-9, wide or not, and no ResNet-18, since these are audited: an audited
network cannot see its own confusions. No network of torchvision, since none can be an extractor, and none of timm,
which enlarges the images to its inputs. Three epochs in two folds take about 35 minutes of one core."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What is wrong in a row of the table.

    Attributes:
        name: in the table.
        options: of `benchmarks.label_noise`; empty if the labels are those of a file.
        rate: share of wrong labels by other networks, if they are those of a file.
        images: number of training images; None for all.
    """

    name: str
    options: tuple[str, ...] = ()
    rate: float | None = None
    images: int | None = None


def by_networks(rate: float) -> Noise:
    """Return the noise by other networks: confusions that the audited network does not share by construction."""
    return Noise(name=f"networks-{rate:g}", rate=rate)


def planted(kind: str, rate: float, images: int | None = None) -> Noise:
    """Return noise that `benchmarks.label_noise` plants."""
    name = f"{kind}-{rate:g}" + (f"-{images}" if images else "")
    return Noise(name=name, options=("--kinds", kind, "--rates", repr(rate)), images=images)


CLEAN_LABELS = Noise(name=CLEAN, options=("--kinds", CLEAN))
"""No wrong label: the accuracy on the test images after the minutes."""

ROWS: tuple[tuple[Noise, int], ...] = (
    (by_networks(RATE), 0),
    (planted("open_set", RATE), 0),
    (planted("corrupt", RATE), 0),
    # Of the five classes that have a partner, which are half of the images.
    (planted("pair", 2 * RATE), 0),
    (CLEAN_LABELS, 0),
    (by_networks(RATE), 1),
    (by_networks(RATE), 2),
    (by_networks(0.02), 0),
    (by_networks(0.2), 0),
    (planted("symmetric", RATE, 12_500), 0),
)
"""Noise and seed of each row, in the order in which they run: first one seed of each kind, then more seeds, then other
shares. All networks audit a row before the next one, so that the table is a fair comparison whenever it stops."""


def label_file(work: Path, rate: float, seed: int) -> Path:
    """Return the file of labels by other networks."""
    return work / "labels" / f"{rate:g}-seed{seed}.csv"


def label_files(work: Path) -> Iterator[tuple[Path, float, int]]:
    """Yield the files of labels with their share and seed: those of the rows, and one to choose on."""
    wanted = [(noise.rate, seed) for noise, seed in ROWS if noise.rate is not None]
    for rate, seed in dict.fromkeys([*wanted, (RATE, CHOICE_SEED)]):
        yield label_file(work, rate, seed), rate, seed


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
