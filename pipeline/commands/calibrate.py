"""`python -m pipeline calibrate`: find the embedding, space, min_samples and eps with which DBSCAN works best.

The objective needs no test images: five times, `--planted-fraction` of the training images move to another class, and
DBSCAN must find them (`scoring.eps_search`). That fraction is the noise that the found eps assumes. Evaluates the
embedding, every embedding of `reduce.extra_embeddings` and the principal components with each of `--min-samples`.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.artifacts.metrics import MapKeys, read_metrics
from pipeline.artifacts.recorded import StageFiles, check_with_note
from pipeline.artifacts.stage_inputs import filter_inputs
from pipeline.commands import command_parser
from pipeline.config.filter import TunedEps
from pipeline.config.params import load_params
from pipeline.errors import DataError, InputError
from pipeline.filtering.inputs import load_filter_inputs
from pipeline.paths import DataPaths
from pipeline.run_log import RunLog, stderr_log
from pipeline.scoring.base import ScorerInputs, Space
from pipeline.scoring.density import release_radii_by_class
from pipeline.scoring.eps_search import k_distances, knee, search_planted
from pipeline.stats.formatting import aligned_lines

_DEFAULT_FRACTION = TunedEps(name="tuned").planted_fraction


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("calibrate", __doc__, "params", "data")
    parser.add_argument("--network", required=True, help="one of `networks` in the parameter file")
    parser.add_argument(
        "--min-samples", type=int, nargs="+", default=[3, 5, 10, 20], help="of DBSCAN, to compare (default: 3 5 10 20)"
    )
    parser.add_argument(
        "--planted-fraction",
        type=float,
        default=_DEFAULT_FRACTION,
        help=f"share of wrong labels to assume, above 0 and below 0.5 (default: {_DEFAULT_FRACTION:g})",
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print a row for each setting, the best first, and the keys to set in params.yaml.

    Returns:
        0.

    Raises:
        InputError: bad arguments, missing results, or data without an eps to choose.
    """
    arguments = make_parser().parse_args(argv)
    params = load_params(arguments.params)
    if arguments.network not in params.networks:
        raise InputError(f"--network {arguments.network}: not in {arguments.params}; it has {[*params.networks]}")
    if min(arguments.min_samples) < 2:
        raise InputError(f"--min-samples {min(arguments.min_samples)}: with 1 no image is noise; give 2 or more")
    fraction = arguments.planted_fraction
    if not 0 < fraction < 0.5:
        raise InputError(f"--planted-fraction {fraction:g}: not above 0 and below 0.5; give one like 0.05")
    data = DataPaths(root=arguments.data)
    metrics = StageFiles(stage="reduce", item=arguments.network, files=(data.reduce_metrics(arguments.network),))
    check_with_note(data, [*filter_inputs(arguments.network, data), metrics])
    inputs = load_filter_inputs(data, arguments.network).scorer_inputs
    if not inputs.has("classes"):
        raise InputError("calibrate: there is only one class, and planted images need another; set filter.eps: knee")
    path = data.reduce_metrics(arguments.network)
    embedding_metrics = read_metrics(path, MapKeys)["maps"]
    assert inputs.embeddings is not None, "the stage `reduce` always writes them"
    if len(embedding_metrics) != len(inputs.embeddings):
        raise DataError(
            f"{path}: has {len(embedding_metrics)} embeddings, not those of {data.embeddings(arguments.network)}; "
            "run `dvc repro`"
        )
    rows = _rows(inputs, embedding_metrics, arguments.min_samples, fraction, stderr_log(None))
    rows.sort(key=lambda row: -row["average_precision"])
    if not rows:
        raise InputError(
            "calibrate: no eps separates images: they coincide, or every class has fewer images than --min-samples; "
            "give smaller numbers"
        )
    if arguments.json:
        print(json.dumps(rows, allow_nan=False))
    else:
        _print(rows, fraction)
    return 0


def _rows(
    inputs: ScorerInputs,
    embedding_metrics: Sequence[Mapping[str, Any]],
    min_samples: Sequence[int],
    fraction: float,
    log: RunLog,
) -> list[dict[str, Any]]:
    """Return a row for each space and min_samples for which there is an eps to choose.

    Args:
        embedding_metrics: of `reduce`, one for each embedding; the first is that of `reduce.tsne`.
        min_samples: the numbers to try.
        fraction: of the images to plant.
    """
    main = embedding_metrics[0]["tsne"]["requested"]
    spaces: list[tuple[str, Space, ScorerInputs]] = [("components", "components", inputs)]
    for index, metrics in enumerate(embedding_metrics):
        requested = metrics["tsne"]["requested"]
        changes = {key: value for key, value in requested.items() if value != main.get(key)}
        spaces.append((_embedding_name(changes), "embedding", inputs.with_embedding(index)))
    rows = []
    with log.progress("calibrate", len(spaces) * len(min_samples), "settings") as bar:
        for (name, space, space_inputs), count in product(spaces, min_samples):
            if found := _row(space_inputs.points(space), space_inputs.labels, count, fraction):
                rows.append({"space": name, "min_samples": count, **found})
            bar.update()
    return rows


def _row(
    points: NDArray[np.float64], labels: NDArray[np.int64], min_samples: int, fraction: float
) -> dict[str, float] | None:
    """Return the best eps of points (N, d), how well it works, and the knee; None if there is no eps to choose."""
    best = search_planted(points, labels, min_samples, fraction=fraction)
    if best is None:
        return None
    radii = release_radii_by_class(points, labels, min_samples=min_samples)
    knee_eps = knee(k_distances(points, labels, min_samples))
    return {
        "average_precision": best.average_precision,
        "f1": best.f1,
        "eps": best.eps,
        "drops": float(np.mean(radii > best.eps)),
        "knee_eps": knee_eps,
        "knee_drops": float(np.mean(radii > knee_eps)),
    }


def _embedding_name(changes: Mapping[str, Any]) -> str:
    return ", ".join(["embedding", *(f"{key} {value}" for key, value in changes.items())])


def _print(rows: Sequence[Mapping[str, Any]], fraction: float) -> None:
    print(f"finding the {100 * fraction:g} % of images that moved to another class; chance is {fraction:g}")
    lines = [("space", "min_samples", "average precision", "best F1", "at eps", "drops", "knee eps", "drops")]
    for row in rows:
        amounts = (f"{row['average_precision']:.3f}", f"{row['f1']:.3f}", f"{row['eps']:.4g}", f"{row['drops']:.2%}")
        of_knee = (f"{row['knee_eps']:.4g}", f"{row['knee_drops']:.2%}")
        lines.append((row["space"], str(row["min_samples"]), *amounts, *of_knee))
    print("\n".join(aligned_lines(lines, left=1)))
    best = rows[0]
    space = "components" if best["space"] == "components" else "embedding"
    eps = "tuned" if fraction == _DEFAULT_FRACTION else f"{{name: tuned, planted_fraction: {fraction:g}}}"
    print(
        f"\nbest: filter: {{scorer: {{name: dbscan, space: {space}, min_samples: {best['min_samples']}}}, eps: {eps}}}"
    )
    if best["space"].startswith("embedding, "):
        print(f"and reduce.tsne with {best['space'].removeprefix('embedding, ')}")
