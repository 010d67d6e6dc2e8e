"""Measure time and memory from features to a keep list at ImageNet's size, and whether it finds planted errors.

Runs PCA, t-SNE, neighbors and two scorers with all tables and reasons, through the functions that the stages call, on
features in a memory-mapped file as `extract` writes them. Every size runs in a separate process, whose anonymous memory
is sampled from outside: pages of the mapped features belong to the system, which frees them when it needs memory. Of
all rows 2.5 % are planted outliers and 2.5 % have a wrong label. AUROC measures how well each score separates them from
the other rows.

    python -m benchmarks.filter_scale --n 10000 50000 --dimensions 512
    python -m benchmarks.filter_scale --n 1281167 --scratch /a/folder/with/11/GB
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from benchmarks.measuring import anonymous_bytes, print_results
from benchmarks.printing import Row
from benchmarks.reduce_speed import random_features
from pipeline.artifacts.files import write_json
from pipeline.artifacts.tables import write_csv, write_parquet
from pipeline.config.filter import FilterConfig
from pipeline.config.reduce import ReduceConfig, landmark_count
from pipeline.figures.rendering import matplotlib_log_axis, matplotlib_style, svg
from pipeline.filtering.apply import FilterContext, apply_filter
from pipeline.filtering.tables import filter_metrics, kept_and_dropped, points_table
from pipeline.parallel import task_pool
from pipeline.reduction.checks import check_features
from pipeline.reduction.neighbors import (
    exact_neighbors,
    knn_label_accuracy,
    nearest_neighbors,
    neighbor_recall,
    quality_sample,
)
from pipeline.reduction.pca import fit_pca
from pipeline.reduction.tsne import fit_training_tsne
from pipeline.scoring.base import ScorerInputs

PLANTED_SHARE = 0.025
"""Share of planted outliers; the share of wrong labels is the same."""

MIN_CLASS_SIZE = 50
BLOCK = 4096
SAMPLE_S = 0.02
STEPS = ("start", "check", "pca", "tsne", "neighbors", "quality", "dbscan", "knn_agreement")


def planted_features(folder: Path, n: int, dimensions: int, n_classes: int) -> dict[str, Path]:
    """Write the files `features` float32 (n, dimensions), `labels` int64 (n,) and `planted` uint8 (n,).

    `planted` is 1 for an outlier, whose features belong to no class, 2 for a wrong label, and 0 otherwise.
    """
    paths = {name: folder / f"{name}.npy" for name in ("features", "labels", "planted")}
    labels = random_features(paths["features"], n, dimensions, n_classes)[1]
    rng = np.random.default_rng(1)
    planted = np.zeros(n, dtype=np.uint8)
    outliers, wrong = np.split(rng.permutation(n)[: 2 * round(PLANTED_SHARE * n)], 2)
    planted[outliers], planted[wrong] = 1, 2
    labels[wrong] = (labels[wrong] + rng.integers(1, n_classes, len(wrong))) % n_classes
    features = np.load(paths["features"], mmap_mode="r+")
    for rows in np.array_split(np.sort(outliers), len(outliers) // BLOCK + 1):
        values = 1.25**0.5 * rng.standard_normal((len(rows), dimensions), dtype=np.float32)
        features[rows] = np.maximum(values, 0)
    features.flush()
    np.save(paths["labels"], labels)
    np.save(paths["planted"], planted)
    return paths


SCORERS: Mapping[str, Mapping[str, Any]] = {
    "dbscan": {"name": "dbscan", "space": "embedding", "min_samples": 5},
    "knn_agreement": {"name": "knn_agreement", "k": 25},
}


def write_tables(
    folder: Path, inputs: ScorerInputs, names: Sequence[str], scorer: Mapping[str, Any]
) -> NDArray[np.float64]:
    """Filter as the stage does, with tables and reasons; return the score (n,) of each row."""
    config = FilterConfig.model_validate({"scorer": scorer, "drop_fraction": 2 * PLANTED_SHARE})
    context = FilterContext(network="resnet50", class_names=names, overrides={})
    sieved = apply_filter(inputs, config, context)
    ids = np.arange(len(inputs.labels))
    images = pa.table(
        {
            "sample_id": ids,
            "path": pa.array([f"train/{row:08}.jpg" for row in ids.tolist()]),
            "label": inputs.labels,
            "label_name": pa.DictionaryArray.from_arrays(inputs.labels, list(names)).dictionary_decode(),
        }
    )
    points = points_table(images, inputs, sieved, names)
    kept, dropped = kept_and_dropped(points)
    write_parquet(folder / "points.parquet", points)
    write_csv(folder / "kept.csv", kept)
    write_csv(folder / "dropped.csv", dropped)
    write_json(folder / "metrics.json", filter_metrics(inputs, sieved, config, context))
    return sieved.decision.scores


class StageTimer:
    """Measures the time of each step, and prints its name for the process that samples the memory."""

    def __init__(self) -> None:
        self._starts: list[tuple[str, float, float]] = []

    def begin(self, name: str) -> None:
        self._starts.append((name, time.perf_counter(), time.process_time()))
        print(name, flush=True)

    def seconds(self) -> dict[str, float]:
        """Return the wall time and the CPU time over all cores, of each step and in total, until now."""
        names, *times = zip(*self._starts, ("", time.perf_counter(), time.process_time()), strict=True)
        wall, cores = (np.diff(values).round(2) for values in times)
        wall_s = {f"{name}_s": value for name, value in zip(names, wall.tolist(), strict=False)}
        core_s = {f"{name}_core_s": value for name, value in zip(names, cores.tolist(), strict=False)}
        totals = round(float(wall.sum()), 2), round(float(cores.sum()), 2)
        return {**wall_s, "total_s": totals[0], **core_s, "total_core_s": totals[1]}


def measure(folder: Path, config: ReduceConfig) -> dict[str, Any]:
    """Run every step of `reduce`, without its files, and of `filter` with them, on the files of `planted_features`.

    Returns:
        Seconds of each step, and the quality of neighbors, embeddings and scores.
    """
    steps = StageTimer()
    features = np.load(folder / "features.npy", mmap_mode="r")
    labels, planted = np.load(folder / "labels.npy"), np.load(folder / "planted.npy")
    landmarks = landmark_count(config.landmarks, len(labels))
    assert config.pca.n_components is not None
    with task_pool("none", workers=1, threads=config.tsne.n_jobs) as run:
        steps.begin("check")
        check_features(features, "features.npy")
        steps.begin("pca")
        axes = fit_pca(features, config.pca.n_components, map_fn=run)
        components = axes.transform(features, map_fn=run)
        steps.begin("tsne")
        embedding = fit_training_tsne(components, labels, config.tsne.model_dump(), landmarks=landmarks)
        steps.begin("neighbors")
        neighbors = nearest_neighbors(components, config.n_neighbors, seed=config.tsne.random_state)
        steps.begin("quality")
        rows = quality_sample(len(labels))
        exact = exact_neighbors(components, rows, config.n_neighbors)
        after = exact_neighbors(embedding.coordinates, rows, config.n_neighbors)
        names = [f"class {label}" for label in range(int(labels.max()) + 1)]
        inputs = ScorerInputs(
            labels=labels,
            embeddings=embedding.coordinates[None],
            components=components,
            neighbors=neighbors.rows,
            map_fn=run,
        )
        scores = {}
        for name, scorer in SCORERS.items():
            steps.begin(name)
            scores[name] = write_tables(folder, inputs, names, scorer)
    seconds = steps.seconds()
    aurocs = {
        f"auroc_{name}_{kind}": round(float(roc_auc_score(planted[rows] > 0, values[rows])), 3)
        for name, values in scores.items()
        for kind, rows in (("outliers", planted != 2), ("wrong_labels", planted != 1))
    }
    return {
        "landmarks": landmarks or 0,
        **seconds,
        "recall": round(neighbor_recall(neighbors.rows[rows], exact), 4),
        "map_knn": round(knn_label_accuracy(after, rows, labels), 3),
        "pca_knn": round(knn_label_accuracy(exact, rows, labels), 3),
        **aurocs,
        "kept": round(float((scores["dbscan"] <= 0.5).mean()), 4),
    }


def run_sampled(command: list[str]) -> tuple[dict[str, Any], dict[str, float]]:
    """Run a command and sample its memory.

    Every line that the command prints before the last names the step that begins.

    Returns:
        The last line, read as JSON, and the peak of anonymous memory (GB) in each step.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    peaks: dict[str, int] = {}
    lines = ["start"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        ended = threading.Event()

        def sample() -> None:
            while not ended.wait(SAMPLE_S):
                peaks[lines[-1]] = max(peaks.get(lines[-1], 0), anonymous_bytes(process.pid))

        sampler = threading.Thread(target=sample)
        sampler.start()
        assert process.stdout is not None
        try:
            lines.extend(line.strip() for line in process.stdout)
        finally:
            ended.set()
            sampler.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    result: dict[str, Any] = json.loads(lines[-1])
    return result, {f"{step}_gb": round(peak / 1e9, 3) for step, peak in peaks.items() if step in STEPS}


def curve(rows: Sequence[Row]) -> Figure:
    """Draw the wall time of all steps and the peak memory against the number of images."""
    sizes = [float(row["n"]) for row in rows]
    with matplotlib_style():
        figure = Figure(figsize=(6.5, 3.2), layout="constrained")
        time_axes, memory_axes = figure.subplots(1, 2)
        time_axes.plot(sizes, [row["total_s"] for row in rows], "o-")
        memory_axes.plot(sizes, [row["peak_gb"] for row in rows], "o-")
        matplotlib_log_axis(time_axes, "y", [float(row["total_s"]) for row in rows])
        time_axes.set(ylabel="features to keep list (s)")
        memory_axes.set(ylabel="anonymous memory (GB)", ylim=(0, None))
        for axes in (time_axes, memory_axes):
            matplotlib_log_axis(axes, "x", sizes)
            for label in axes.get_xticklabels():
                label.set(rotation=30, ha="right", rotation_mode="anchor")
            axes.set(xlabel="images")
        return figure


def main() -> None:
    """Print a table and a line of JSON; with `--measure`, measure in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--n", type=int, nargs="+", default=[10_000, 50_000], help="numbers of images, each in a separate process"
    )
    parser.add_argument("--dimensions", type=int, default=2048, help="features per image")
    parser.add_argument(
        "--classes", type=int, default=1000, help=f"maximum; each class has {MIN_CLASS_SIZE} images or more"
    )
    parser.add_argument("--jobs", type=int, default=2, help="threads of all steps")
    parser.add_argument("--landmarks", default="auto", help="auto, none or a number")
    parser.add_argument("--scratch", help="folder for the features (default: that of the system)")
    parser.add_argument("--curve", type=Path, help="SVG file for the plot of time and memory")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    landmarks = int(arguments.landmarks) if arguments.landmarks.isdigit() else arguments.landmarks
    config = ReduceConfig.model_validate({"tsne": {"n_jobs": arguments.jobs}, "landmarks": landmarks})
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, config)))
        return
    rows = []
    for n in arguments.n:
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
            classes = min(arguments.classes, n // MIN_CLASS_SIZE)
            planted_features(Path(folder), n, arguments.dimensions, classes)
            options = ["--measure", folder, "--jobs", str(arguments.jobs), "--landmarks", arguments.landmarks]
            result, peaks = run_sampled([sys.executable, "-m", "benchmarks.filter_scale", *options])
        rows.append({"n": n, "classes": classes, **result, "peak_gb": max(peaks.values()), **peaks})
    if arguments.curve:
        arguments.curve.write_bytes(svg(curve(rows)))
    print_results(arguments, rows)


if __name__ == "__main__":
    main()
