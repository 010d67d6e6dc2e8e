"""`python -m pipeline filter-features`: the filter on features made elsewhere, without images or training.

Any array (N, D) does, e.g. of another pretrained network. Labels are optional: without them all rows
are one group, and scorers that compare no labels find what lies alone. The sections `reduce` and
`filter` of the parameters apply as they do to the project's own features.

    python -m pipeline filter-features --features f.npy --labels y.csv --out suspects
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.files import write_array, write_json
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import write_csv, write_parquet
from pipeline.commands import command_parser
from pipeline.config.params import Params, load_params
from pipeline.embedding import embed
from pipeline.errors import InputError
from pipeline.features.linear import cross_validated_probabilities, probe_folds
from pipeline.filtering.apply import FilterContext, sieve
from pipeline.filtering.external_features import ExternalFeatures, agreement, read_external_features
from pipeline.filtering.tables import filter_metrics, kept_and_dropped, points_table
from pipeline.parallel import task_pool
from pipeline.run_log import stderr_log
from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.registry import SCORERS, check_scorer

_PROBE_FOLDS = 5


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("filter-features", __doc__, "params")
    parser.add_argument("--features", type=Path, required=True, help=".npy, float (N, D)")
    parser.add_argument("--labels", type=Path, help="UTF-8 CSV, N rows with a column label; a column path is passed on")
    parser.add_argument(
        "--probabilities",
        type=Path,
        help=".npy, float (N, C); classes by number if all labels are whole numbers, else in alphabetical order",
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the same tables as the stage, and say how many rows stay."""
    arguments = make_parser().parse_args(argv)
    params = load_params(arguments.params)
    if isinstance(params.filter.drop_fraction, dict):
        raise InputError(f"{arguments.params}: filter.drop_fraction: is by network, and there is none; give one number")
    if arguments.out.exists() and not arguments.out.is_dir():
        raise InputError(f"--out {arguments.out}: is no folder; give another, or move the file away")
    _run(read_external_features(arguments.features, arguments.labels, arguments.probabilities), params, arguments)
    return 0


def _run(given: ExternalFeatures, params: Params, arguments: argparse.Namespace) -> None:
    out, config, log = arguments.out, params.filter, stderr_log(None)
    folds = _folds(given, config.scorer.model_dump())
    _check_filter(given, params, probed=folds is not None)
    with task_pool(params.dask.scheduler, workers=params.dask.workers, threads=params.reduce.tsne.n_jobs) as run:
        mapped = embed(
            given.features, given.labels, params.reduce, components_file=out / "components.npy", log=log, map_fn=run
        )
        probabilities, about = _class_probabilities(given, mapped.components, folds)
        evidence = ScorerInputs(
            labels=given.labels,
            embeddings=mapped.coordinates,
            components=mapped.components,
            neighbors=mapped.neighbors.rows,
            probabilities=probabilities,
            map_fn=run,
        )
        known = FilterContext(network=arguments.features.stem, class_names=given.names, overrides={})
        sieved = sieve(evidence, config, known, fix="give more rows")
    points = points_table(_rows(given, probabilities), replace(evidence, map_fn=map), sieved)
    metrics = {**filter_metrics(evidence, sieved, config, known), **about, "reduce": mapped.metrics}
    write_array(out / "maps.npy", mapped.coordinates)
    _write(out, points, metrics, params, arguments)
    _print_summary(out, metrics)


def _folds(given: ExternalFeatures, scorer: Mapping[str, Any]) -> NDArray[np.int64] | None:
    """(N,) of a linear probe, where a scorer needs class probabilities and none were given."""
    needs = {need for member in (scorer, *scorer.get("scorers", ())) for need in SCORERS[member["name"]].needs}
    if given.probabilities is not None or "probabilities" not in needs or len(given.names) < 2:
        return None
    return probe_folds(given.labels, _PROBE_FOLDS, seed=0)


def _check_filter(given: ExternalFeatures, params: Params, *, probed: bool) -> None:
    """Refuse before the map, which may take an hour, what labels and settings decide."""
    if params.filter.eps == "tuned" and len(given.names) < 2:
        raise InputError("filter.eps: tuned plants images in other classes, and there is one only; use knee")

    def unknown(*shape: int) -> NDArray[Any]:
        """Stands for an array to come: nothing but its shape is looked at, and it takes no memory."""
        return np.broadcast_to(np.float32(0), shape)

    n = len(given.labels)
    to_come = ScorerInputs(
        labels=given.labels,
        embeddings=unknown(1, n, 2),
        components=unknown(n, 1),
        neighbors=unknown(n, params.reduce.n_neighbors),
        probabilities=unknown(n, len(given.names)) if probed else given.probabilities,
    )
    check_scorer(to_come, params.filter.scorer.model_dump(), given.names, "filter.scorer")


def _class_probabilities(
    given: ExternalFeatures, components: NDArray[np.float32], folds: NDArray[np.int64] | None
) -> tuple[NDArray[np.float32] | None, dict[str, Any]]:
    """Class probabilities if there are any, and for metrics.json whose they are and how good."""
    probabilities, whose, probe = given.probabilities, None, None
    if probabilities is not None:
        whose = "given"
    elif folds is not None:
        found = cross_validated_probabilities(components, given.labels, folds=folds, n_classes=len(given.names))
        probabilities, whose = found.probabilities, f"linear probe, {_PROBE_FOLDS}-fold cross-validated"
        probe = {"iterations": found.iterations, "converged": found.converged}
    agree = None if probabilities is None else agreement(probabilities, given.labels)
    return probabilities, {"probabilities": whose, "probabilities_agree": agree, "probe": probe}


def _write(
    out: Path, points: pa.Table, metrics: Mapping[str, Any], params: Params, arguments: argparse.Namespace
) -> None:
    kept, dropped = kept_and_dropped(points)
    write_parquet(out / "points.parquet", points)
    write_csv(out / "kept.csv", kept)
    write_csv(out / "dropped.csv", dropped)
    write_json(out / "metrics.json", metrics)
    files = [path for path in (arguments.features, arguments.labels, arguments.probabilities) if path]
    write_provenance(
        out / "provenance.json",
        stage="filter-features",
        parameters={name: getattr(params, name).model_dump(mode="json") for name in ("reduce", "filter")},
        inputs=files,
        outputs=[out / name for name in ("points.parquet", "kept.csv", "dropped.csv", "metrics.json")],
    )


def _print_summary(out: Path, metrics: Mapping[str, Any]) -> None:
    if metrics["share_note"]:
        print(f"filter.drop_fraction: {metrics['share_note']}")
    if (agree := metrics["probabilities_agree"]) is not None:
        whose = metrics["probabilities"]
        print(f"probabilities ({whose}): the most probable class is the label in {agree:.2%} of the rows")
    print(f"{out}: {metrics['n_kept']} of {metrics['n_total']} kept ({metrics['kept_share']:.2%}); see dropped.csv")


def _rows(given: ExternalFeatures, probabilities: NDArray[np.float32] | None) -> pa.Table:
    """The columns that the points begin with."""
    columns: dict[str, Any] = {"sample_id": np.arange(len(given.labels))}
    if given.paths is not None:
        columns["path"] = pa.array(given.paths, pa.string())
    columns["label"] = given.labels
    columns["label_name"] = pa.array([given.names[label] for label in given.labels], pa.string())
    if probabilities is not None:
        columns["predicted"] = probabilities.argmax(axis=1)
        columns["confidence"] = probabilities.max(axis=1)
    return pa.table(columns)
