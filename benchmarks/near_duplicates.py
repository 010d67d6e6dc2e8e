"""Measure how many near duplicates the search finds, and how many of its pairs are none, over its two thresholds.

The classes are split into two halves. Among the images of each half it plants copies: encoded again, shifted by 1 or 2
pixels, 10 to 20 % brighter or darker, mirrored, or cropped. The thresholds with the best F1 on the first half are
reported on the second, next to the default ones; neither half has chosen those. Features are those of the preset
`audit`, trained on the images of the half, and of a pretrained network if `--pretrained` or its package is there.

Images that are near duplicates without being planted count as errors, so the precision is a lower bound. The file of
results has their paths, to look at. Finished halves are kept; the same command goes on.

    OMP_NUM_THREADS=1 nice -n 19 python -m benchmarks.near_duplicates --data data
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from batchsieve.looking.networks import DEFAULT_NETWORK, PretrainedNetwork, packaged_weights
from benchmarks.label_noise.folders import write_subset
from benchmarks.label_noise.own_process import in_own_process
from benchmarks.planted_duplicates import CHANGES, Planted, plant
from benchmarks.printing import Row, print_table
from pipeline import distributed
from pipeline.artifacts.files import open_array, read_json, write_array, write_json
from pipeline.artifacts.prepared import load_prepared, prepared_digest
from pipeline.artifacts.provenance import sha256_of_file
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.commands.iterate.running import StageFailedError, StageProcesses
from pipeline.config.params import load_params
from pipeline.errors import InputError
from pipeline.paths import DataPaths, WorkPaths
from pipeline.reduction.near_duplicates import MAX_CHANCE_PAIRS, MIN_PIXEL_CORRELATION, near_duplicates
from pipeline.stages.harness import exit_codes

CHANCES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 10_000.0)
"""Values of `max_chance_pairs`."""

CORRELATIONS = (-1.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
"""Values of `min_pixel_correlation`; the first one is no condition."""

_HALVES = ("first", "second")


@dataclass(frozen=True, kw_only=True, eq=False)
class DuplicatePairs:
    """P pairs of a search at the loosest thresholds, and the copies that were planted.

    Attributes:
        chance: (P,) expected number of pairs that are as near by chance.
        correlation: (P,) of gray thumbnails.
        kinds: (P,) what was planted; "" for a pair that was not.
        n_planted: copies of each kind.
    """

    chance: NDArray[np.float64]
    correlation: NDArray[np.float64]
    kinds: NDArray[np.str_]
    n_planted: int

    def measures(self, max_chance: float, min_correlation: float) -> dict[str, float]:
        """Return precision, recall and F1, 0 to 1, the number of pairs not planted, and the recall of each kind."""
        found = self.kinds[(self.chance <= max_chance) & (self.correlation >= min_correlation)]
        hits = {kind: int((found == kind).sum()) for kind in CHANGES}
        n_hits, n_copies = sum(hits.values()), self.n_planted * len(CHANGES)
        return {
            "precision": n_hits / len(found) if len(found) else 1.0,
            "recall": n_hits / n_copies,
            "f1": 2 * n_hits / (len(found) + n_copies),
            "not_planted": len(found) - n_hits,
            **{kind: count / self.n_planted for kind, count in hits.items()},
        }

    def best(self) -> tuple[float, float]:
        """Return the thresholds with the highest F1, of equal ones the strictest."""
        grid = [(chance, correlation) for chance in CHANCES for correlation in reversed(CORRELATIONS)]
        return max(grid, key=lambda thresholds: self.measures(*thresholds)["f1"])


def kinds_of_pairs(pairs: NDArray[np.int64], n: int, planted: Planted) -> NDArray[np.str_]:
    """Return what was planted (P,) of pairs (P, 2) among n images and then the planted ones; "" for other pairs."""
    kinds = {
        (source, n + i): kind
        for i, (source, kind) in enumerate(zip(planted.sources.tolist(), planted.kinds, strict=True))
    }
    return np.array([kinds.get((first, second), "") for first, second in pairs.tolist()], dtype="<U16")


def halves(labels: NDArray[np.int64], n_classes: int, count: int | None, seed: int) -> Iterator[NDArray[np.bool_]]:
    """Yield the images (N,) of each half of the classes, at most `count`, chosen at random."""
    rng = np.random.default_rng(seed)
    classes = rng.permutation(n_classes)
    for half in (classes[: n_classes // 2], classes[n_classes // 2 :]):
        rows = np.flatnonzero(np.isin(labels, half))
        if count is not None and count < len(rows):
            rows = rng.choice(rows, size=count, replace=False)
        mask = np.zeros(len(labels), dtype=np.bool_)
        mask[rows] = True
        yield mask


def write_half(base: DataPaths, target: DataPaths, mask: NDArray[np.bool_], per_kind: int, seed: int) -> Planted:
    """Write prepare/ of a half with the planted images as its last ones, and return what was planted.

    Raises:
        InputError: there are too few images.
    """
    pixels = np.asarray(open_array(base.images("train"), dtype=np.uint8, ndim=4, rows=len(mask))[mask])
    if per_kind * len(CHANGES) > len(pixels):
        raise InputError(f"--per-kind: {per_kind} copies of {len(CHANGES)} kinds need as many images, and a half has "
                         f"{len(pixels)}; give less")  # fmt: skip
    planted = plant(pixels, per_kind, np.random.default_rng(seed))
    if not target.prepare_metrics.exists() or read_parquet(target.manifest("train"), ["path"]).num_rows == len(pixels):
        write_subset(base, target, mask)
        write_array(target.images("train"), np.concatenate([pixels, planted.images]))
        manifest = read_parquet(target.manifest("train"))
        copies = manifest.take(pa.array(planted.sources))
        new = {
            "sample_id": pa.array(len(pixels) + np.arange(len(planted.kinds))),
            "path": pa.array(
                [f"planted/{kind}/{path}" for kind, path in zip(planted.kinds, copies["path"].to_pylist(), strict=True)]
            ),
        }
        for name, column in new.items():
            copies = copies.set_column(copies.column_names.index(name), name, column)
        write_parquet(target.manifest("train"), pa.concat_tables([manifest, copies]))
    return planted


def trained_features(data: DataPaths, params: Path, network: str, work: Path) -> NDArray[np.float32]:
    """Run the unfinished ones of finetune and extract, and return the features (N, D).

    Raises:
        StageFailedError: a stage failed; it has printed the reason.
    """
    processes = StageProcesses(network)
    with processes.forwarding_signals():
        for stage in ("finetune", "extract"):
            if not data.provenance(stage, network).exists():
                print(f"{data.root}: {stage}", flush=True)
                processes.run(stage, params, data, WorkPaths(root=work))
    return np.asarray(open_array(data.features(network), dtype=np.float32, ndim=2))


def pretrained_features(images: Path, weights: Path) -> NDArray[np.float32]:
    """Return the features (N, D) of the default pretrained network."""
    with distributed.join_process_group("auto") as world:
        return PretrainedNetwork(DEFAULT_NETWORK, weights, world).encode(open_array(images, dtype=np.uint8, ndim=4))


def search(features: NDArray[np.float32], data: DataPaths, planted: Planted) -> dict[str, Any]:
    """Return the pairs of the search at the loosest thresholds, as `results_pairs` reads them."""
    n = len(features) - len(planted.kinds)
    images = open_array(data.images("train"), dtype=np.uint8, ndim=4, rows=len(features))
    found = near_duplicates(features, images, max_chance_pairs=CHANCES[-1], min_pixel_correlation=CORRELATIONS[0])
    paths = read_parquet(data.manifest("train"), ["path"])["path"].to_pylist()
    return {
        "n": len(features),
        "n_planted": len(planted.kinds) // len(CHANGES),
        "dimension": found.dimension,
        "chance": found.chance_pairs.tolist(),
        "correlation": found.pixel_correlation.astype(np.float64).tolist(),
        "kinds": kinds_of_pairs(found.pairs, n, planted).tolist(),
        "paths": [[paths[row] for row in pair] for pair in found.pairs.tolist()],
    }


def results_pairs(results: Mapping[str, Any]) -> DuplicatePairs:
    """Return the pairs of `search`."""
    return DuplicatePairs(
        chance=np.array(results["chance"]),
        correlation=np.array(results["correlation"]),
        kinds=np.array(results["kinds"], dtype="<U16"),
        n_planted=results["n_planted"],
    )


def report_rows(network: str, first: DuplicatePairs, second: DuplicatePairs) -> list[Row]:
    """Return rows of the default and the best thresholds of the first half, on both halves."""
    thresholds = {"default": (MAX_CHANCE_PAIRS, MIN_PIXEL_CORRELATION), "best of first": first.best()}
    rows: list[Row] = []
    for name, (chance, correlation) in thresholds.items():
        for half, pairs in zip(_HALVES, (first, second), strict=True):
            measures = pairs.measures(chance, correlation)
            shown = {key: value if key == "not_planted" else f"{value:.3f}" for key, value in measures.items()}
            limits = {"chance_pairs": f"{chance:g}", "correlation": f"{correlation:g}"}
            rows.append({"network": network, "thresholds": name, **limits, "half": half, **shown})
    return rows


def grid_rows(network: str, pairs: DuplicatePairs) -> list[Row]:
    """Return a row for each `max_chance_pairs`, with precision and recall for each `min_pixel_correlation`."""
    rows: list[Row] = []
    for chance in CHANCES:
        cells = {}
        for correlation in CORRELATIONS:
            measures = pairs.measures(chance, correlation)
            cells[f"r>={correlation:g}"] = f"{measures['precision']:.3f} {measures['recall']:.3f}"
        rows.append({"network": network, "chance_pairs": f"{chance:g}", **cells})
    return rows


def _run(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Return network -> the results of both halves."""
    base = DataPaths(root=arguments.data)
    params = load_params(arguments.params)
    data = load_prepared(base, folder=params.prepare.folder)
    weights = arguments.pretrained or packaged_weights()
    identity = {
        "data": prepared_digest(base),
        "params": sha256_of_file(arguments.params),
        **{key: getattr(arguments, key) for key in ("images", "per_kind", "seed")},
    }
    plan = arguments.work / "plan.json"
    if plan.exists() and read_json(plan) != identity:
        raise InputError(f"{plan}: is of other arguments or images; choose another --work, or delete that folder")
    write_json(plan, identity)
    results: dict[str, list[dict[str, Any]]] = {}
    own = params.networks[0]
    masks = halves(data.train.labels, len(data.class_names), arguments.images, arguments.seed)
    for number, (half, mask) in enumerate(zip(_HALVES, masks, strict=True)):
        folder = arguments.work / half
        target = DataPaths(root=folder / "data")
        planted = write_half(base, target, mask, arguments.per_kind, arguments.seed + number)
        for network in (own, *((DEFAULT_NETWORK,) if weights else ())):
            file = arguments.work / "results" / f"{Path(network).name}-{half}.json"
            if not file.exists():
                if network == own:
                    features = trained_features(target, arguments.params, own, folder / "work")
                else:
                    features, _ = in_own_process(pretrained_features, target.images("train"), weights)
                write_json(file, {"network": network, "half": half, **search(features, target, planted)})
            results.setdefault(network, []).append(read_json(file))
    if not weights:
        print(f"{DEFAULT_NETWORK} is not measured: its package is not installed, and there is no --pretrained")
    return results


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.near_duplicates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with prepare/")
    parser.add_argument("--params", type=Path, default=Path("presets/audit.yaml"), help="recipe (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=Path(".work/near_duplicates"), help="folder of halves and results")
    parser.add_argument("--images", type=int, default=10_000, help="images of a half (default: 10000)")
    parser.add_argument("--per-kind", type=int, default=100, help="copies of each kind in a half (default: 100)")
    parser.add_argument("--pretrained", type=Path, help=f"weights of {DEFAULT_NETWORK} (default: those of its package)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    with exit_codes():
        try:
            results = _run(arguments)
        except StageFailedError as error:
            raise SystemExit(error.code) from None
        for network, (first, second) in results.items():
            print(f"\n{network}: precision and recall on the first half")
            print_table(grid_rows(network, results_pairs(first)))
            print()
            print_table(report_rows(network, results_pairs(first), results_pairs(second)))


if __name__ == "__main__":
    main()
