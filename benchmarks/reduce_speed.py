"""Compare the time from features to a keep list (PCA, t-SNE, per-class DBSCAN) with scikit-learn's.

Ours runs at the full size. At a smaller size that scikit-learn's t-SNE can handle, ours and scikit-learn's PCA, TSNE
and DBSCAN run with the same perplexity, number of iterations and threads. Both find the radius for the same share of
noise: ours from the release radii, scikit-learn by bisection. Features are rectified Gaussian blobs, one per class, in
a memory-mapped file as `extract` writes them.

    python -m benchmarks.reduce_speed --n 50000 --dimensions 2048
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from sklearn.cluster import DBSCAN
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from pipeline.config.reduce import TsneConfig
from pipeline.reduction.neighbors import exact_neighbors, knn_label_accuracy, quality_sample
from pipeline.reduction.pca import fit_pca
from pipeline.reduction.tsne import fit_tsne
from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.decision import DropFraction, decide

N_COMPONENTS = 50
MIN_SAMPLES = 5
STEPS = ("pca", "tsne", "dbscan")

Features = NDArray[np.float32]
Labels = NDArray[np.int64]
Steps = tuple[Callable[[Features], Features], Callable[[Features], Features], Callable[[Features], float]]


def random_features(path: Path, n: int, dimensions: int, n_classes: int) -> tuple[Features, Labels]:
    """Write rectified blobs (n, dimensions) to `path`; return them memory-mapped, with labels (n,)."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, n_classes, n)
    centers = rng.normal(size=(n_classes, dimensions), scale=0.5).astype(np.float32)
    features = open_memmap(path, mode="w+", dtype=np.float32, shape=(n, dimensions))
    for start in range(0, n, 4096):
        rows = labels[start : start + 4096]
        features[start : start + 4096] = np.maximum(
            centers[rows] + rng.standard_normal((len(rows), dimensions), dtype=np.float32), 0
        )
    features.flush()
    return np.load(path, mmap_mode="r"), labels


def our_steps(labels: Labels, tsne: TsneConfig, share: float) -> Steps:
    """Return the functions that the stages call, without files."""

    def reduce(features: Features) -> Features:
        return fit_pca(features, N_COMPONENTS).transform(features)

    def embed(components: Features) -> Features:
        return fit_tsne(components, tsne.model_dump(), report=lambda *_: None).coordinates

    def choose(coordinates: Features) -> float:
        scorer = {"name": "dbscan", "space": "embedding", "min_samples": MIN_SAMPLES}
        inputs = ScorerInputs(embeddings=coordinates[None], labels=labels)
        decision = decide(inputs, scorer, DropFraction(fraction=share))
        return float(decision.is_noise.mean())

    return reduce, embed, choose


def sklearn_steps(labels: Labels, tsne: TsneConfig, share: float) -> Steps:
    """Return scikit-learn's functions, with its defaults except where they determine the amount of work."""

    def reduce(features: Features) -> Features:
        components: Features = PCA(N_COMPONENTS, random_state=0).fit_transform(features)
        return components

    def embed(components: Features) -> Features:
        iterations = tsne.early_exaggeration_iter + tsne.n_iter
        model = TSNE(perplexity=tsne.perplexity, max_iter=iterations, n_jobs=tsne.n_jobs, random_state=0)
        coordinates: Features = model.fit_transform(components)
        return coordinates

    def noise_share(coordinates: Features, eps: float) -> float:
        classes = [coordinates[labels == label] for label in np.unique(labels)]
        noise = [DBSCAN(eps=eps, min_samples=MIN_SAMPLES).fit(points).labels_ == -1 for points in classes]
        return float(np.concatenate(noise).mean())

    def choose(coordinates: Features) -> float:
        low, high = 0.0, float(np.ptp(coordinates, axis=0).max())
        while True:
            eps = (low + high) / 2
            achieved = noise_share(coordinates, eps)
            if abs(achieved - share) <= 0.001 or high - low < 1e-4:
                return achieved
            low, high = (eps, high) if achieved > share else (low, eps)

    return reduce, embed, choose


def measure(features: Features, labels: Labels, steps: Steps) -> dict[str, Any]:
    """Return the seconds of each step, the share of noise, and the neighbors' label accuracy on the embedding."""
    reduce, embed, choose = steps
    times = [time.perf_counter()]
    components = reduce(features)
    times.append(time.perf_counter())
    coordinates = embed(components)
    times.append(time.perf_counter())
    noise_share = choose(coordinates)
    times.append(time.perf_counter())
    rows = quality_sample(len(labels))
    accuracy = knn_label_accuracy(exact_neighbors(coordinates, rows, 10), rows, labels)
    seconds = dict(zip(STEPS, np.diff(times).tolist(), strict=True))
    return {**seconds, "total": times[-1] - times[0], "noise_share": noise_share, "map_knn_accuracy": accuracy}


def main() -> None:
    """Print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=50_000, help="images")
    parser.add_argument("--dimensions", type=int, default=2048, help="features per image")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--reference-size", type=int, default=5000, help="images of the comparison")
    parser.add_argument("--jobs", type=int, default=2, help="threads of all steps")
    parser.add_argument("--drop-fraction", type=float, default=0.0512)
    arguments = parser.parse_args()
    tsne = TsneConfig(n_jobs=arguments.jobs)
    small = min(arguments.reference_size, arguments.n)
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(arguments.jobs):
        features, labels = random_features(
            Path(folder, "features.npy"), arguments.n, arguments.dimensions, arguments.classes
        )
        ours, theirs = our_steps, sklearn_steps
        results = {
            f"ours, {arguments.n}": measure(features, labels, ours(labels, tsne, arguments.drop_fraction)),
        }
        peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
        part, part_labels = features[:small], labels[:small]
        for name, steps in ((f"ours, {small} (again)", ours), (f"scikit-learn, {small}", theirs)):
            results[name] = measure(part, part_labels, steps(part_labels, tsne, arguments.drop_fraction))
    columns = [*STEPS, "total", "noise_share", "map_knn_accuracy"]
    print(f"{'':24}" + "".join(f"{column:>18}" for column in columns))
    for name, row in results.items():
        print(f"{name:24}" + "".join(f"{row[column]:18.3f}" for column in columns))
    slow, fast = results[f"scikit-learn, {small}"], results[f"ours, {small} (again)"]
    ratios = {step: slow[step] / fast[step] for step in (*STEPS, "total")}
    print(f"{'scikit-learn / ours':24}" + "".join(f"{ratios[step]:18.2f}" for step in ratios))
    print(f"peak memory of the full size: {peak_gb:.2f} GB, pages of the mapped features included")
    print(json.dumps({"arguments": vars(arguments), "results": results, "ratios": ratios, "peak_gb": peak_gb}))


if __name__ == "__main__":
    main()
