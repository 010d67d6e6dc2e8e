"""Draw docs/images/headline.png from the recorded runs of the headline: accuracy and gain against batch size.

    python docs/tooling/headline_figure.py

Dots are seeds; bars are 95 % t intervals over them. The crosses are the paper's numbers, of another recipe.
"""

from __future__ import annotations

import csv
import hashlib
import io
import sys
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from pipeline.figures.palette import ARMS  # noqa: E402
from pipeline.replication.published import PUBLISHED  # noqa: E402
from pipeline.runs.ledger import Ledger  # noqa: E402
from pipeline.stats.estimates import mean_estimate  # noqa: E402

_RESULTS = ROOT / "docs" / "results" / "headline"
_N_IMAGES = 50_000
_CONFIDENCE = 0.95
_SHIFTS = {"full": 0.93, "filtered": 1.0, "random": 1.075}

Accuracies = dict[tuple[int, str], dict[int, float]]


def read_accuracies() -> Accuracies:
    """Return (batch size, arm) -> seed -> top-1 in percent."""
    arms = _arms_by_digest()
    found: Accuracies = defaultdict(dict)
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(_RESULTS / "2026-11-25-runs" / "ledger.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        ledger = Ledger(Path(folder, ".work", "cells"))
        for key in ledger.run_keys():
            settings = key.job["settings"]
            arm = arms.get(str(key.job["members"]), "random")
            top1 = ledger.get(key.fingerprint).top1
            assert top1 is not None, key.fingerprint
            found[settings["batch_size"], arm][settings["seed"]] = 100 * top1
    return found


def _arms_by_digest() -> dict[str, str]:
    """Return the digest of the images of the arms that are the same for all seeds, as a run's key has it."""
    with tarfile.open(_RESULTS / "2026-11-25-filter" / "filter.tar.xz") as archive:
        kept = archive.extractfile("data/filter/resnet101/kept.csv")
        assert kept is not None
        rows = [int(row["sample_id"]) for row in csv.DictReader(io.TextIOWrapper(kept, encoding="utf-8"))]
    filtered = np.zeros(_N_IMAGES, dtype=np.bool_)
    filtered[rows] = True
    masks = {"full": np.ones(_N_IMAGES, dtype=np.bool_), "filtered": filtered}
    return {hashlib.sha256(np.packbits(mask).tobytes()).hexdigest(): arm for arm, mask in masks.items()}


def draw(found: Accuracies) -> Figure:
    """Return accuracy and gain against batch size, next to each other."""
    sizes = sorted({size for size, _ in found})
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    accuracy, gain = figure.subplots(1, 2)
    for arm, color in ((arm, ARMS[arm]) for arm in _SHIFTS):
        _points(accuracy, {size: list(found[size, arm].values()) for size in sizes}, _SHIFTS[arm], color, arm)
    accuracy.set_ylabel("top-1 (%)")
    for control, color in (("full", ARMS["full"]), ("random", ARMS["random"])):
        differences = {
            size: [
                found[size, "filtered"][seed] - found[size, control][seed] for seed in sorted(found[size, "filtered"])
            ]
            for size in sizes
        }
        _points(gain, differences, _SHIFTS[control], color, f"filtered − {control}")
    gain.axhline(0, color="0.6", linewidth=1, zorder=0)
    gain.set_ylabel("difference (points of top-1)")
    paper = {point.arm: point for point in PUBLISHED["gahlot-2020-fig7"].points}
    for arm, point in paper.items():
        accuracy.plot(point.batch_size, 100 * point.top1, "x", color=ARMS[arm], label=f"{arm}, paper")
    difference = 100 * (paper["filtered"].top1 - paper["full"].top1)
    gain.plot(paper["full"].batch_size, difference, "x", color=ARMS["full"], label="filtered − full, paper")
    for axes in (accuracy, gain):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.set_xlabel("batch size")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="small")
    return figure


def _points(axes: Axes, values: dict[int, list[float]], shift: float, color: str, label: str) -> None:
    """Draw the seeds of each batch size, their mean and its interval."""
    sizes = [size * shift for size in values]
    estimates = [mean_estimate(of_seeds, _CONFIDENCE) for of_seeds in values.values()]
    means = [estimate.mean for estimate in estimates]
    half = [estimate.mean - estimate.low if estimate.low is not None else 0.0 for estimate in estimates]
    axes.errorbar(sizes, means, half, color=color, label=label, linewidth=1.2, capsize=2)
    for size, of_seeds in zip(sizes, values.values(), strict=True):
        axes.plot([size] * len(of_seeds), of_seeds, ".", color=color, alpha=0.4, markersize=4)


if __name__ == "__main__":
    draw(read_accuracies()).savefig(ROOT / "docs" / "images" / "headline.png", dpi=110, metadata={"Software": None})
