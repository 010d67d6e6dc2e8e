"""Draw docs/images/law.png from the recorded runs of law_steps: accuracy and gain of filtering against batch size.

    python docs/tooling/law_figure.py

The filter is the oracle, which drops exactly the wrong labels. The gain is filtered at batch B minus full at B, with
the same steps. The law says that full at B is as good as filtered at batch s^2 B, so its prediction of the gain is
filtered at B minus filtered at s^2 B. Dots are seeds, bars 95 % t intervals over them.
"""

from __future__ import annotations

import csv
import io
import sys
import tarfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from docs.tooling.recorded_runs import recorded_runs, save_figure  # noqa: E402
from pipeline.config.params import load_params  # noqa: E402
from pipeline.figures.palette import ARMS  # noqa: E402
from pipeline.runs.ledger import Ledger  # noqa: E402
from pipeline.stats.estimates import Estimate, mean_estimate, rounding_sd  # noqa: E402

_RESULTS = ROOT / "docs" / "results" / "law" / "2026-11-28-oracle"
LEDGER = _RESULTS / "ledger.tar.xz"
_STUDY = "law_steps"
_N_CLASSES, _N_TRAIN, _N_TEST = 10, 10_000, 10_000
_PREDICTION = "#4d4d4d"
_LINES = ("-", "--")
_APART = 0.12
"""Octaves between the marks of one batch size, so that none hides another."""

Accuracies = dict[tuple[int, float, str], dict[int, float]]
"""(Batch size, learning rate, arm) -> seed -> top-1 in percent."""


def read_accuracies(ledger: Ledger) -> Accuracies:
    """Return the accuracies of the study's runs.

    Raises:
        InputError: see `recorded_runs`.
    """
    masks = {"full": np.ones(_N_TRAIN, dtype=np.bool_), "filtered": np.zeros(_N_TRAIN, dtype=np.bool_)}
    with tarfile.open(_RESULTS / "filter.tar.xz") as archive:
        kept = archive.extractfile("data/filter/resnet18/kept.csv")
        assert kept is not None
        masks["filtered"][[int(row["sample_id"]) for row in csv.DictReader(io.TextIOWrapper(kept, "utf-8"))]] = True
    found: Accuracies = defaultdict(dict)
    params = load_params(_RESULTS / "params.yaml")
    for run in recorded_runs(ledger, params, [_STUDY], lambda _: masks, n_classes=_N_CLASSES):
        found[run.batch_size, run.learning_rate, run.arm][run.seed] = run.top1
    return found


def equivalent_sizes() -> dict[int, int]:
    """Return batch size B of the full arm -> s^2 B of the filtered one."""
    params = load_params(_RESULTS / "params.yaml")
    return params.studies[_STUDY].equivalent_sizes(params.train)


def difference(found: Accuracies, a: tuple[int, float, str], b: tuple[int, float, str]) -> Estimate | None:
    """Return the mean of a - b in percentage points over the seeds that have both; None without one."""
    values = [found[a][seed] - found[b][seed] for seed in sorted(found[a].keys() & found[b].keys())]
    return mean_estimate(values, 0.95, rounding=100 * rounding_sd(1 / _N_TEST) * 2**0.5) if values else None


def draw(found: Accuracies) -> Figure:
    """Return accuracy and gain against batch size, next to each other."""
    smaller = equivalent_sizes()
    rates = sorted({rate for _, rate, _ in found})
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    accuracy, gain = figure.subplots(1, 2)
    for number, (rate, line) in enumerate(zip(rates, _LINES, strict=True)):
        for arm, shift in zip(("full", "filtered"), _shifts(number), strict=True):
            of_seeds = {size: list(found[size, rate, arm].values()) for size in smaller if found[size, rate, arm]}
            estimates = {size: mean_estimate(values, 0.95) for size, values in of_seeds.items()}
            _errorbar(accuracy, estimates, shift, line=line, color=ARMS[arm], label=f"{arm}, rate {rate:g}")
            for size, values in of_seeds.items():
                accuracy.plot([size * shift] * len(values), values, ".", color=ARMS[arm], alpha=0.4, markersize=4)
        partners = {"measured": ("full", {size: size for size in smaller}), "law": ("filtered", smaller)}
        colors = (ARMS["filtered"], _PREDICTION)
        for (name, (arm, other)), color, shift in zip(partners.items(), colors, _shifts(number), strict=True):
            gains = {size: difference(found, (size, rate, "filtered"), (other[size], rate, arm)) for size in smaller}
            known = {size: one for size, one in gains.items() if one is not None}
            _errorbar(gain, known, shift, line=line, color=color, label=f"{name}, rate {rate:g}")
    accuracy.set_ylabel("top-1 (%)")
    gain.axhline(0, color="0.6", linewidth=1, zorder=0)
    gain.set_ylabel("filtered − full (points of top-1)")
    for axes in (accuracy, gain):
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(smaller), [f"{size:,}" for size in smaller])
        axes.set_xlabel("batch size")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="small")
    return figure


def _shifts(number: int) -> tuple[float, float]:
    """Return the factors by which the batch sizes of the two series of a rate are moved on the axis."""
    first, second = 2 ** (_APART * (2 * number - 1.5)), 2 ** (_APART * (2 * number - 0.5))
    return first, second


def _errorbar(axes: Axes, estimates: dict[int, Estimate], shift: float, *, line: str, color: str, label: str) -> None:
    half = [one.mean - one.low if one.low is not None else 0.0 for one in estimates.values()]
    means = [one.mean for one in estimates.values()]
    sizes = [size * shift for size in estimates]
    axes.errorbar(sizes, means, half, linestyle=line, color=color, label=label, linewidth=1.2, capsize=2)


if __name__ == "__main__":
    sys.exit(save_figure(ROOT / "docs/images/law.png", LEDGER, lambda ledger: draw(read_accuracies(ledger))))
