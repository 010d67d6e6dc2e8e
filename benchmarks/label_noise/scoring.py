"""Phase (b): what scorers say of the arrays of a case, how well, and at what cost. Imports no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.label_noise.own_process import Cost, in_own_process
from pipeline.artifacts.json_file import read_json, write_json
from pipeline.errors import InputError
from pipeline.reduction.quality import exact_neighbours
from pipeline.selection.dbscan import release_radii_by_class
from pipeline.selection.detection import MEASURES, compare
from pipeline.selection.evidence import Evidence

K_VOTING = 25


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """What scorers may look at, of N images.

    Attributes:
        labels: int64 (N,), as given.
        features: float32 (N, D).
        probabilities: float32 (N, K).
        coordinates: float32 (N, 2), the joint map.
    """

    labels: NDArray[np.int64]
    features: NDArray[np.float32]
    probabilities: NDArray[np.float32]
    coordinates: NDArray[np.float32]
    min_samples: int


def self_confidence(arrays: Arrays) -> NDArray[np.float64]:
    """One less the probability of the given label."""
    given = arrays.probabilities[np.arange(len(arrays.labels)), arrays.labels]
    return 1.0 - given.astype(np.float64)


def cleanlab_self_confidence(arrays: Arrays) -> NDArray[np.float64]:
    """One less cleanlab's label quality (Northcutt, Jiang and Chuang 2021, Confident Learning)."""
    from cleanlab.rank import get_label_quality_scores

    quality = get_label_quality_scores(arrays.labels, arrays.probabilities, method="self_confidence")
    return 1.0 - np.asarray(quality, dtype=np.float64)


def cleanlab_issues(arrays: Arrays) -> NDArray[np.float64]:
    """The issues that cleanlab finds, in its own order; all others are alike."""
    from cleanlab.filter import find_label_issues

    ranked = find_label_issues(
        arrays.labels, arrays.probabilities, return_indices_ranked_by="self_confidence", n_jobs=1
    )
    suspicion = np.zeros(len(arrays.labels))
    suspicion[ranked] = np.arange(len(ranked), 0, -1)
    return suspicion


def knn_vote(arrays: Arrays) -> NDArray[np.float64]:
    """Share of the 25 nearest others in feature space (Euclidean, exact) that have another label."""
    k = min(K_VOTING, len(arrays.labels) - 1)
    neighbours = exact_neighbours(arrays.features, np.arange(len(arrays.labels)), k)
    return np.asarray((arrays.labels[neighbours] != arrays.labels[:, None]).mean(axis=1))


def dbscan(arrays: Arrays) -> NDArray[np.float64]:
    """The radius on the joint map from which on DBSCAN releases an image into its class: `filter.method: dbscan`."""
    evidence = Evidence(coordinates=arrays.coordinates.astype(np.float64), labels=arrays.labels)
    return release_radii_by_class(evidence, min_samples=arrays.min_samples)


SCORERS: Mapping[str, Callable[[Arrays], NDArray[np.float64]]] = {
    "self_confidence": self_confidence,
    "cleanlab_self_confidence": cleanlab_self_confidence,
    "cleanlab_issues": cleanlab_issues,
    "knn_vote": knn_vote,
    "dbscan": dbscan,
}
_NEED_MAP = {"dbscan"}


def check_scorers(names: Sequence[str], reference: str) -> None:
    """Refuse scorers that cannot run here, and a reference that is not among them."""
    if any(name.startswith("cleanlab") for name in names) and find_spec("cleanlab") is None:
        raise InputError("--scorers: cleanlab is not installed; pip install -e '.[cleanlab]', or name the others alone")
    if reference not in names:
        raise InputError(f"--reference: {reference} is not among --scorers {' '.join(names)}; add it or choose one")


def run_scorer(name: str, folder: Path, min_samples: int) -> tuple[NDArray[np.float64], Cost]:
    """Suspicion (N,) by one scorer, and what it cost, that of the map included where it looks at it."""
    imports = ["cleanlab.filter", "cleanlab.rank"] if name.startswith("cleanlab") else []
    values, cost = in_own_process(_score, name, folder, min_samples, imports=imports)
    if name in _NEED_MAP:
        mapping = read_json(folder / "finished.json")["map"]
        peak = max(cost.peak_memory_mb, mapping["peak_memory_mb"])
        cost = Cost(seconds=cost.seconds + mapping["seconds"], peak_memory_mb=peak)
    return values, cost


def _score(name: str, folder: Path, min_samples: int) -> NDArray[np.float64]:
    arrays = Arrays(
        labels=np.load(folder / "labels.npy"),
        features=np.load(folder / "features.npy", mmap_mode="r"),
        probabilities=np.load(folder / "probabilities.npy"),
        coordinates=np.load(folder / "map.npy"),
        min_samples=min_samples,
    )
    return SCORERS[name](arrays)


def score_case(
    folder: Path, names: Sequence[str], *, reference: str, min_samples: int, resamples: int
) -> dict[str, Any]:
    """results.json of a case: what it is, and of each scorer the measures with intervals, and the cost."""
    scored = {name: run_scorer(name, folder, min_samples) for name in names}
    wrong = np.load(folder / "labels.npy") != np.load(folder / "truth.npy")
    compared = compare(
        {name: values for name, (values, _) in scored.items()}, wrong, reference=reference, resamples=resamples
    )
    results = {
        "case": folder.name,
        **read_json(folder / "finished.json"),
        "reference": reference,
        "resamples": resamples,
        "scorers": {
            name: {
                **asdict(cost),
                "measures": {key: asdict(interval) for key, interval in compared.measured[name].items()},
                "less_reference": {
                    key: asdict(interval) for key, interval in compared.differences.get(name, {}).items()
                },
            }
            for name, (_, cost) in scored.items()
        },
    }
    write_json(folder / "results.json", results)
    return results


def table_rows(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row a scorer."""
    return [
        {
            "case": results["case"],
            "scorer": name,
            **{_TITLES[measure]: f"{found['measures'][measure]['value']:.4f}" for measure in MEASURES},
            "seconds": f"{found['seconds']:.1f}",
            "peak_MB": f"{found['peak_memory_mb']:.0f}",
        }
        for name, found in results["scorers"].items()
    ]


_TITLES = {
    "auroc": "AUROC",
    "average_precision": "avg_precision",
    # As many are named as are wrong, so that the three are one number.
    "f1_at_true_share": "P=R=F1@true",
    "precision_at_5_percent": "P@5%",
    "recall_at_5_percent": "R@5%",
}
