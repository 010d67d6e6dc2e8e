"""Draw docs/images/headline.png from the recorded runs of the headline: accuracy and gain against batch size.

    python docs/tooling/headline_figure.py

It has the runs of the studies `slopes` and `batch_6272` in params.yaml next to the searches of the rate: 600,000
images, by one process. All others of the ledger are left out. Dots are seeds; bars are t intervals over them, 95 %,
and of differences at the size with looks 1 - level of each look. The crosses are the paper's numbers, of another
recipe.
"""

from __future__ import annotations

import csv
import io
import sys
import tarfile
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from docs.tooling.recorded_runs import recorded_runs, save_figure  # noqa: E402
from pipeline.arms import arm_mask  # noqa: E402
from pipeline.config.params import Params, load_params  # noqa: E402
from pipeline.figures.palette import ARMS  # noqa: E402
from pipeline.replication.published import PUBLISHED  # noqa: E402
from pipeline.runs.ledger import Ledger  # noqa: E402
from pipeline.stats.estimates import Estimate, mean_estimate, rounding_sd  # noqa: E402
from pipeline.stats.sequential import look_levels  # noqa: E402

_RESULTS = ROOT / "docs" / "results" / "headline"
LEDGER = _RESULTS / "2026-11-25-runs" / "ledger.tar.xz"
_STUDIES = ("slopes", "batch_6272")
_N_CLASSES = 10
_N_TEST = 10_000
_SHIFTS = {"full": 0.93, "filtered": 1.0, "random": 1.075}

Accuracies = dict[tuple[int, str], dict[int, float]]


@cache
def params() -> Params:
    """Return the parameters of the runs."""
    return load_params(_RESULTS / "2026-11-25-rates" / "params.yaml")


def read_accuracies(ledger: Ledger) -> Accuracies:
    """Return (batch size, arm) -> seed -> top-1 in percent, of the runs of the studies in the figure.

    Raises:
        InputError: see `recorded_runs`.
    """
    found: Accuracies = defaultdict(dict)
    for run in recorded_runs(ledger, params(), _STUDIES, _masks, n_classes=_N_CLASSES):
        found[run.batch_size, run.arm][run.seed] = run.top1
    return found


def _masks(seed: int) -> dict[str, NDArray[np.bool_]]:
    labels, keep = _filtered_images()
    return {arm: arm_mask(arm, labels, keep, seed=seed) for arm in _SHIFTS}


@cache
def _filtered_images() -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the class of each training image, as its number in the order of the names, and the filter's decision."""
    names: dict[int, str] = {}
    kept: list[int] = []
    with tarfile.open(_RESULTS / "2026-11-25-filter" / "filter.tar.xz") as archive:
        for table in ("kept", "dropped"):
            stored = archive.extractfile(f"data/filter/resnet101/{table}.csv")
            assert stored is not None
            rows = {int(row["sample_id"]): row["label_name"] for row in
                    csv.DictReader(io.TextIOWrapper(stored, encoding="utf-8"))}  # fmt: skip
            names |= rows
            kept += rows if table == "kept" else []
    labels = np.unique([names[row] for row in range(len(names))], return_inverse=True)[1]
    keep = np.zeros(len(names), dtype=np.bool_)
    keep[kept] = True
    return labels, keep


def confidence_of_differences(size: int) -> float:
    """Return the confidence of the intervals of differences at a batch size: 1 - level of a look where it has looks."""
    confidence = params().report.confidence
    looks = [study.looks for name in _STUDIES if (study := params().studies[name]).looks and size in study.batch_sizes]
    return 1 - look_levels(tuple(looks[0]), 1 - confidence).difference if looks and looks[0] else confidence


def draw(found: Accuracies) -> Figure:
    """Return accuracy and gain against batch size, next to each other."""
    sizes = sorted({size for size, _ in found})
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    accuracy, gain = figure.subplots(1, 2)
    for arm, color in ((arm, ARMS[arm]) for arm in _SHIFTS):
        accuracies = {size: list(found[size, arm].values()) for size in sizes}
        estimates = [mean_estimate(of_seeds, params().report.confidence) for of_seeds in accuracies.values()]
        _points(accuracy, accuracies, estimates, shift=_SHIFTS[arm], color=color, label=arm)
    accuracy.set_ylabel("top-1 (%)")
    for control, color in (("full", ARMS["full"]), ("random", ARMS["random"])):
        differences = {size: differences_of(found, size, control) for size in sizes}
        estimates = [difference_estimate(found, size, control) for size in sizes]
        _points(gain, differences, estimates, shift=_SHIFTS[control], color=color, label=f"filtered − {control}")
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


def differences_of(found: Accuracies, size: int, control: str) -> list[float]:
    """Return filtered - control in percentage points, of the seeds that have both."""
    filtered, others = found[size, "filtered"], found[size, control]
    return [filtered[seed] - others[seed] for seed in sorted(filtered.keys() & others.keys())]


def difference_estimate(found: Accuracies, size: int, control: str) -> Estimate:
    """Return the mean of filtered - control in percentage points, with the interval that the report has."""
    rounding = 100 * rounding_sd(1 / _N_TEST) * 2**0.5
    return mean_estimate(differences_of(found, size, control), confidence_of_differences(size), rounding=rounding)


def _points(
    axes: Axes, values: dict[int, list[float]], estimates: list[Estimate], *, shift: float, color: str, label: str
) -> None:
    """Draw the seeds of each batch size, their mean and its interval."""
    sizes = [size * shift for size in values]
    means = [estimate.mean for estimate in estimates]
    half = [estimate.mean - estimate.low if estimate.low is not None else 0.0 for estimate in estimates]
    axes.errorbar(sizes, means, half, color=color, label=label, linewidth=1.2, capsize=2)
    for size, of_seeds in zip(sizes, values.values(), strict=True):
        axes.plot([size] * len(of_seeds), of_seeds, ".", color=color, alpha=0.4, markersize=4)


if __name__ == "__main__":
    sys.exit(save_figure(ROOT / "docs/images/headline.png", LEDGER, lambda ledger: draw(read_accuracies(ledger))))
