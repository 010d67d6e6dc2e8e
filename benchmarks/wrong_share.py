"""Measure how well `filter.drop_fraction: estimated` finds a planted share of wrong labels.

Labels of known images are changed by the three kinds of noise of `prepare.plant_label_noise`, and by a fourth one,
`hard`: another classifier, of a few principal components of the pixels, decides which images are mislabeled and as
what, the ones it doubts more often. A logistic regression on the features gives probabilities, out of five folds and in
sample. Each line has the mean over seeds; `covered` counts the intervals that hold the truth.

    python -m benchmarks.wrong_share
    python -m benchmarks.wrong_share --features f.npy --labels y.npy --images x.npy --out result.json
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from benchmarks.printing import print_table
from pipeline.artifacts.files import write_json
from pipeline.datasets.label_noise import NoiseKind, plant_label_noise
from pipeline.features.linear import cross_validated_probabilities, fit_head, probe_folds
from pipeline.scoring.wrong_share import estimate_wrong_share

KINDS: tuple[NoiseKind, ...] = get_args(NoiseKind)
HARD = "hard"
RATES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
_FOLDS = 5
_DOUBTING_COMPONENTS = 10


@dataclass(frozen=True, kw_only=True)
class KnownImages:
    """Images whose labels are taken for right: features (N, D), labels (N,), images (N, H, W, 3) uint8."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    images: NDArray[np.uint8]


def digits() -> KnownImages:
    """Return the 1,797 digits of scikit-learn, their 64 pixels as features."""
    bunch = load_digits()
    pixels: NDArray[np.uint8] = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    return KnownImages(
        features=bunch.data.astype(np.float32), labels=bunch.target.astype(np.int64), images=np.stack([pixels] * 3, -1)
    )


def plant(known: KnownImages, kind: str, rate: float, seed: int) -> NDArray[np.int64]:
    """Return labels (N,) of which a share `rate` is wrong."""
    rng = np.random.default_rng([seed, [*KINDS, HARD].index(kind)])
    if kind == HARD:
        return _plant_on_hard_images(known, rate, seed, rng)
    noise = KINDS[KINDS.index(kind)]
    return plant_label_noise(known.labels, noise, rate, images=known.images, rng=rng)


def _plant_on_hard_images(known: KnownImages, rate: float, seed: int, rng: np.random.Generator) -> NDArray[np.int64]:
    pixels = known.images.reshape(len(known.labels), -1).astype(np.float32)
    components = PCA(_DOUBTING_COMPONENTS, svd_solver="covariance_eigh").fit_transform(pixels)
    others = _out_of_fold(components, known.labels, seed).astype(np.float64)
    rows = np.arange(len(known.labels))
    others[rows, known.labels] = 0
    doubt = others.sum(axis=1)
    mislabeled = rng.choice(rows, size=round(rate * len(rows)), replace=False, p=doubt / doubt.sum())
    planted = known.labels.copy()
    for row in mislabeled.tolist():
        planted[row] = rng.choice(others.shape[1], p=others[row] / doubt[row])
    return planted


def _out_of_fold(features: NDArray[np.float32], labels: NDArray[np.int64], seed: int) -> NDArray[np.float32]:
    folds = probe_folds(labels, _FOLDS, seed, key="--images", fix="give more images")
    return cross_validated_probabilities(features, labels, folds=folds, n_classes=int(labels.max()) + 1).probabilities


def _in_sample(features: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float32]:
    head = fit_head(features, labels)
    return np.asarray(softmax(features @ head.weight.T + head.bias, axis=1), dtype=np.float32)


def measure(known: KnownImages, kind: str, rate: float, seed: int) -> dict[str, Any]:
    """Plant wrong labels, and return the truth, the accuracy out of fold and the estimates."""
    noisy = plant(known, kind, rate, seed)
    probabilities = _out_of_fold(known.features, noisy, seed)
    start = time.perf_counter()
    estimate = estimate_wrong_share(noisy, probabilities, seed=seed)
    return {
        "kind": kind,
        "rate": rate,
        "seed": seed,
        "truth": float((noisy != known.labels).mean()),
        "accuracy": float((probabilities.argmax(axis=1) == known.labels).mean()),
        "estimate": asdict(estimate),
        "seconds": time.perf_counter() - start,
        "in_sample": estimate_wrong_share(noisy, _in_sample(known.features, noisy)).extrapolated.share,
    }


def rows_of(results: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield a row of the table for each kind and rate."""
    for kind, rate in dict.fromkeys((result["kind"], result["rate"]) for result in results):
        group = [result for result in results if (result["kind"], result["rate"]) == (kind, rate)]
        shares = [result["estimate"]["extrapolated"] for result in group]
        joint = np.mean([result["estimate"]["confident_joint"]["share"] for result in group])
        covered = sum(
            share["low"] <= result["truth"] <= share["high"] for share, result in zip(shares, group, strict=True)
        )
        yield {
            "noise": kind if rate else "none",
            "wrong %": f"{100 * rate:g}",
            "top-1 %": f"{100 * np.mean([result['accuracy'] for result in group]):.1f}",
            "estimated %": f"{100 * np.mean([share['share'] for share in shares]):.1f}",
            "least": f"{100 * min(share['share'] for share in shares):.1f}",
            "most": f"{100 * max(share['share'] for share in shares):.1f}",
            "covered": f"{covered}/{len(group)}",
            "confident joint %": f"{100 * joint:.1f}",
            "in sample %": f"{100 * np.mean([result['in_sample'] for result in group]):.1f}",
        }


def main() -> None:
    """Print the table, and write each measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, content in {"features": "(N, D)", "labels": "(N,)", "images": "uint8 (N, H, W, 3)"}.items():
        parser.add_argument(f"--{option}", type=Path, help=f".npy, {content}; default: the digits")
    parser.add_argument("--components", type=int, default=50, help="principal components of the features")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    known = digits()
    if arguments.features is not None:
        features = PCA(arguments.components, random_state=0).fit_transform(np.load(arguments.features))
        known = KnownImages(
            features=features.astype(np.float32), labels=np.load(arguments.labels), images=np.load(arguments.images)
        )
    cases = [(KINDS[0], 0.0), *((kind, rate) for kind in (*KINDS, HARD) for rate in RATES if rate)]
    results = [measure(known, kind, rate, seed) for kind, rate in cases for seed in range(1, arguments.seeds + 1)]
    print_table(list(rows_of(results)))
    print(
        f"{np.mean([result['seconds'] for result in results]):.2f} s for each estimate of {len(known.labels):,} images"
    )
    if arguments.out is not None:
        write_json(arguments.out, results)


if __name__ == "__main__":
    main()
