"""`python -m pipeline calibrate`: find the map, space, min_samples and eps with which DBSCAN works best.

The objective is stated and needs no test image: 5 % of the training images are given to another
class, five times anew, and DBSCAN has to find them (`selection.calibration`). Every map of
`reduce.extra_embeddings`, so every t-SNE setting that has been computed, and the principal components are
tried with each of `--min-samples`.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.artifacts.files import read_json
from pipeline.commands import command_parser
from pipeline.config.params import load_params
from pipeline.errors import InputError
from pipeline.filtering.inputs import load_filter_inputs
from pipeline.paths import DataPaths
from pipeline.scoring.base import ScorerInputs, Space
from pipeline.scoring.density import release_radii_by_class
from pipeline.scoring.eps_search import PLANTED_SHARE, k_distances, knee, search_planted


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("calibrate", __doc__, "params", "data")
    parser.add_argument("--network", required=True)
    parser.add_argument("--min-samples", type=int, nargs="+", default=[3, 5, 10, 20])
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print a row for each setting, the best first, and what to write into params.yaml."""
    arguments = make_parser().parse_args(argv)
    params = load_params(arguments.params)
    if arguments.network not in params.networks:
        raise InputError(f"--network {arguments.network}: not in {arguments.params}; it has {[*params.networks]}")
    if min(arguments.min_samples) < 2:
        raise InputError(f"--min-samples {min(arguments.min_samples)}: give numbers from 2 on; with 1 nothing is noise")
    data = DataPaths(root=arguments.data)
    inputs = load_filter_inputs(data, arguments.network).scorer_inputs
    if not inputs.has("classes"):
        raise InputError("calibrate: there is one class only, and planted images need another; set filter.eps: knee")
    made = read_json(data.reduce_metrics(arguments.network))["maps"]
    rows = sorted(_rows(inputs, made, arguments.min_samples), key=lambda row: -row["average_precision"])
    if not rows:
        raise InputError(
            "calibrate: there is no radius to choose: images lie on one another, or no class has so many as "
            "--min-samples; give smaller numbers"
        )
    _print(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


def _rows(
    inputs: ScorerInputs, made: Sequence[Mapping[str, Any]], min_samples: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """A row for each space and min_samples; `made` is what `reduce` says of its maps."""
    assert inputs.embeddings is not None
    main = made[0]["tsne"]["requested"]
    spaces: list[tuple[str, Space, ScorerInputs]] = [("components", "components", inputs)]
    for index in range(len(inputs.embeddings)):
        asked = made[index]["tsne"]["requested"]
        changes = {key: value for key, value in asked.items() if value != main[key]}
        spaces.append((_map_name(changes), "embedding", inputs.with_embedding(index)))
    for name, space, seen in spaces:
        points = seen.points(space)
        for least in min_samples:
            found = search_planted(points, seen.labels, least)
            if found is None:
                continue
            radii = release_radii_by_class(points, seen.labels, min_samples=least)
            distances = k_distances(points, seen.labels, least)
            yield {
                "space": name,
                "min_samples": least,
                "average_precision": found.average_precision,
                "f1": found.f1,
                "eps": found.eps,
                "drops": float(np.mean(radii > found.eps)),
                "knee_eps": (at := knee(distances)),
                "knee_drops": float(np.mean(radii > at)),
            }


def _map_name(changes: Mapping[str, Any]) -> str:
    return ", ".join(["embedding", *(f"{key} {value}" for key, value in changes.items())])


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    print(f"finding {PLANTED_SHARE:.0%} of the images that were given to another class; chance is {PLANTED_SHARE:g}")
    width = max(len(row["space"]) for row in rows)
    print(
        f"{'space':{width}} {'min_samples':>11} {'average precision':>17} {'best F1':>8} {'at eps':>9} {'drops':>7} "
        f"{'knee eps':>9} {'drops':>7}"
    )
    for row in rows:
        print(
            f"{row['space']:{width}} {row['min_samples']:11d} {row['average_precision']:17.3f} {row['f1']:8.3f} "
            f"{row['eps']:9.4g} {row['drops']:7.2%} {row['knee_eps']:9.4g} {row['knee_drops']:7.2%}"
        )
    best = rows[0]
    space = "components" if best["space"] == "components" else "embedding"
    print(
        f"\nbest: filter: {{scorer: {{name: dbscan, space: {space}, min_samples: {best['min_samples']}}}, eps: tuned}}"
    )
    if best["space"].startswith("map, "):
        print(f"and reduce.tsne with {best['space'].removeprefix('map, ')}")
