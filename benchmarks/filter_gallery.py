"""Compare what each scorer drops: pictures, agreement, and the share against eps.

Reads the output of `dvc repro` for one network and lets every scorer drop the same share of its images. Writes

* gallery.png: the most suspect images by each scorer, with their labels,
* agreement.json: the Jaccard index of the images that each pair of scorers drops,
* share_of_eps.svg: DBSCAN's share of dropped images against eps, with the five shares of the paper's Table I.

    python -m benchmarks.filter_gallery --network resnet18 --out docs/results/FOLDER
"""

import argparse
import time
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from pipeline.artifacts.files import open_array, write_json
from pipeline.figures.palette import MARK, SERIES
from pipeline.figures.rendering import matplotlib_log_axis, matplotlib_style, png, svg
from pipeline.filtering.inputs import FilterInputs, load_filter_inputs
from pipeline.paths import DataPaths
from pipeline.replication.published import KEPT_SHARES
from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.decision import DropFraction, decide
from pipeline.scoring.registry import SCORERS
from pipeline.scoring.thresholds import curve_thresholds, jaccard, shares_above, threshold_for_share

DBSCAN = {"name": "dbscan", "space": "embedding", "min_samples": 5}
CHOICES: Mapping[str, Mapping[str, Any]] = {
    "dbscan, map": DBSCAN,
    "dbscan, components": {**DBSCAN, "space": "components"},
    "hdbscan, map": {"name": "hdbscan", "space": "embedding", "min_cluster_size": 20, "min_samples": 5},
    "knn_agreement": {"name": "knn_agreement", "k": 25},
    "knn_distance": {"name": "knn_distance", "k": 10},
    "centroid": {"name": "centroid"},
    "self_confidence": {"name": "self_confidence"},
    "smoothed_confidence": {"name": "smoothed_confidence", "k": 25},
    "mean_confidence": {"name": "mean_confidence"},
    "label_odds": {"name": "label_odds"},
    "margin": {"name": "margin"},
    "el2n": {"name": "el2n"},
    "confident_learning": {"name": "confident_learning"},
    "ensemble": {"name": "ensemble", "scorers": [{"name": "self_confidence"}, {"name": "knn_agreement", "k": 25}]},
    "grid": {"name": "grid", "cells": 20, "seed": 0},
    "random": {"name": "random", "seed": 0},
}


def gallery(images: NDArray[np.uint8], inputs: FilterInputs, suspects: Mapping[str, NDArray[np.int64]]) -> Figure:
    """Draw a row of pictures for each scorer.

    Args:
        images: uint8 (N, H, W, 3).
        suspects: scorer -> rows of the images, the most suspect first.
    """
    columns = max(len(rows) for rows in suspects.values())
    labels = inputs.scorer_inputs.labels
    with matplotlib_style():
        figure = Figure(figsize=(columns * 0.75 + 1.6, len(suspects) * 0.95))
        grid: Any = figure.subplots(len(suspects), columns, squeeze=False, gridspec_kw={"wspace": 0.06, "hspace": 0.3})
        for line, (name, rows) in zip(grid, suspects.items(), strict=True):
            line[0].text(-0.15, 0.5, name, transform=line[0].transAxes, ha="right", va="center", fontsize=8)
            for axes, row in zip(line, rows, strict=True):
                axes.set_axis_off()
                axes.imshow(images[row], interpolation="nearest")
                axes.set_title(inputs.class_names[labels[row]], fontsize=6, pad=1.5)
        return figure


def share_of_eps(inputs: ScorerInputs) -> Figure:
    """Draw the share of noise against eps, and the eps that reach the paper's shares."""
    radii = SCORERS["dbscan"].values(inputs, space="embedding", min_samples=DBSCAN["min_samples"])
    eps = curve_thresholds(radii)
    shares = 100 * shares_above(radii, eps)
    with matplotlib_style():
        figure = Figure(figsize=(6.5, 4.2))
        axes: Any = figure.subplots()
        axes.plot(eps, shares, color=MARK)
        for (network, kept), color in zip(KEPT_SHARES.items(), cycle(SERIES), strict=False):
            threshold = threshold_for_share(radii, 1 - kept)
            share = threshold.n_above / len(radii)
            label = f"{network}: requested {100 * (1 - kept):.2f} %, {100 * share:.2f} % at eps {threshold.value:.3g}"
            axes.plot(threshold.value, 100 * share, "o", color=color, markersize=4, label=label)
        axes.legend(fontsize=8, loc="lower left")
        matplotlib_log_axis(axes, "x", eps)
        matplotlib_log_axis(axes, "y", shares)
        axes.set(xlabel="eps (units of the embedding)", ylabel="DBSCAN noise (% of the images)")
        return figure


def main() -> None:
    """Write the three files and print each scorer's share, seconds and agreement with DBSCAN."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--share", type=float, default=0.05, help="share of the images that each scorer drops")
    parser.add_argument("--columns", type=int, default=16, help="pictures per scorer")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    data = DataPaths(root=arguments.data)
    inputs = load_filter_inputs(data, arguments.network)
    images = open_array(data.images("train"), dtype=np.uint8, ndim=4, rows=len(inputs.scorer_inputs.labels))
    dropped, suspects, seconds = {}, {}, {}
    for name, scorer in CHOICES.items():
        start = time.perf_counter()
        decision = decide(inputs.scorer_inputs, scorer, DropFraction(fraction=arguments.share))
        seconds[name] = round(time.perf_counter() - start, 2)
        dropped[name] = decision.is_noise
        suspects[name] = np.argsort(-decision.values, kind="stable")[: arguments.columns]
    agreement = {
        left: {right: round(jaccard(dropped[left], dropped[right]), 4) for right in CHOICES} for left in CHOICES
    }
    shares = {name: round(float(noise.mean()), 5) for name, noise in dropped.items()}
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out / "agreement.json", {"dropped": shares, "seconds": seconds, "jaccard": agreement})
    (arguments.out / "gallery.png").write_bytes(png(gallery(images, inputs, suspects), dpi=110))
    (arguments.out / "share_of_eps.svg").write_bytes(svg(share_of_eps(inputs.scorer_inputs)))
    print(f"{'scorer':20} {'dropped':>8} {'seconds':>8} {'Jaccard with dbscan on the map':>32}")
    for name in CHOICES:
        print(f"{name:20} {shares[name]:8.2%} {seconds[name]:8.2f} {agreement[name]['dbscan, map']:32.3f}")


if __name__ == "__main__":
    main()
