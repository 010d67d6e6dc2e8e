"""`python -m pipeline filter-features`: filter external features, without images or training.

Takes any array (N, D), e.g. of another pretrained network. Labels are optional: without them all rows are one class,
and scorers that compare no labels find isolated rows. The sections `reduce` and `filter` of the parameters apply as
they do to the pipeline's features.

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
from pipeline.config.filter import FilterConfig
from pipeline.config.params import Params, load_params
from pipeline.embedding import embed
from pipeline.errors import InputError
from pipeline.features.linear import cross_validated_probabilities, probe_folds
from pipeline.filtering.apply import FilterContext, check_estimate, sieve
from pipeline.filtering.external_features import ExternalFeatures, agreement, read_external_features
from pipeline.filtering.tables import filter_metrics, kept_and_dropped, points_table
from pipeline.parallel import task_pool
from pipeline.run_log import stderr_log
from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.registry import SCORERS, check_scorer, member_scorers

_PROBE_FOLDS = 5


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("filter-features", __doc__, "params")
    parser.add_argument("--features", type=Path, required=True, help=".npy, float (N, D)")
    parser.add_argument(
        "--labels", type=Path, help="UTF-8 CSV, N rows with a column label; a column path is copied to the results"
    )
    parser.add_argument(
        "--probabilities",
        type=Path,
        help=".npy, float (N, C); classes by number if all labels are whole numbers, else in alphabetical order",
    )
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    return parser


def main(argv: Sequence[str]) -> int:
    """Write the same tables as the stage `filter`, and print how many rows it keeps.

    Returns:
        0.

    Raises:
        InputError: bad parameters or files, or labels and probabilities do not fit the scorer.
    """
    arguments = make_parser().parse_args(argv)
    params = load_params(arguments.params)
    if isinstance(params.filter.drop_fraction, dict):
        raise InputError(
            f"{arguments.params}: filter.drop_fraction: gives a share per network, but there is no network; give "
            "one number"
        )
    if arguments.out.exists() and not arguments.out.is_dir():
        raise InputError(f"--out {arguments.out}: a file; give a folder, or move the file away")
    _run(read_external_features(arguments.features, arguments.labels, arguments.probabilities), params, arguments)
    return 0


def _run(external: ExternalFeatures, params: Params, arguments: argparse.Namespace) -> None:
    out, config, log = arguments.out, params.filter, stderr_log(None)
    folds = _folds(external, config)
    _check_filter(external, params, probed=folds is not None)
    with task_pool(params.dask.scheduler, workers=params.dask.workers, threads=params.reduce.tsne.n_jobs) as map_fn:
        embedded = embed(
            external.features,
            external.labels,
            params.reduce,
            components_file=out / "components.npy",
            log=log,
            map_fn=map_fn,
        )
        probabilities, probability_metrics = _class_probabilities(external, embedded.components, folds)
        inputs = ScorerInputs(
            labels=external.labels,
            embeddings=embedded.coordinates,
            components=embedded.components,
            neighbors=embedded.neighbors.rows,
            probabilities=probabilities,
            map_fn=map_fn,
        )
        context = FilterContext(network=arguments.features.stem, class_names=external.class_names, overrides={})
        filtered = sieve(inputs, config, context, fix="give more rows")
    points = points_table(_rows(external, probabilities), replace(inputs, map_fn=map), filtered, external.class_names)
    metrics = {
        **filter_metrics(inputs, filtered, config, context),
        **probability_metrics,
        "reduce": embedded.metrics,
    }
    write_array(out / "maps.npy", embedded.coordinates)
    _write(out, points, metrics, params, arguments)
    if filtered.estimate is not None:
        print(f"filter.drop_fraction: {filtered.estimate}")
    _print_summary(out, metrics)


def _folds(external: ExternalFeatures, config: FilterConfig) -> NDArray[np.int64] | None:
    """Return the (N,) folds of a linear probe if the filter needs class probabilities and the user gives none."""
    scorer = config.scorer.model_dump()
    needs = {need for member in (scorer, *member_scorers(scorer).values()) for need in SCORERS[member["name"]].needs}
    if config.drop_fraction == "estimated":
        needs.add("probabilities")
    if external.probabilities is not None or "probabilities" not in needs or len(external.class_names) < 2:
        return None
    return probe_folds(external.labels, _PROBE_FOLDS, seed=0)


def _check_filter(external: ExternalFeatures, params: Params, *, probed: bool) -> None:
    """Raise errors of labels and settings before the embedding, which may take an hour."""
    if params.filter.planted_fraction is not None and len(external.class_names) < 2:
        raise InputError("filter.eps: tuned plants images in other classes, but there is only one class; use knee")

    def placeholder(*shape: int) -> NDArray[Any]:
        """Return an array without memory, for checks that read only its shape."""
        return np.broadcast_to(np.float32(0), shape)

    n = len(external.labels)
    shapes = ScorerInputs(
        labels=external.labels,
        embeddings=placeholder(1, n, 2),
        components=placeholder(n, 1),
        neighbors=placeholder(n, params.reduce.n_neighbors),
        probabilities=placeholder(n, len(external.class_names)) if probed else external.probabilities,
    )
    check_scorer(shapes, params.filter.scorer.model_dump(), external.class_names, "filter.scorer")
    check_estimate(shapes, params.filter, "")


def _class_probabilities(
    external: ExternalFeatures, components: NDArray[np.float32], folds: NDArray[np.int64] | None
) -> tuple[NDArray[np.float32] | None, dict[str, Any]]:
    """Return class probabilities if there are any, and their source and quality for metrics.json."""
    probabilities, source, probe_metrics = external.probabilities, None, None
    if probabilities is not None:
        source = "given"
    elif folds is not None:
        probe = cross_validated_probabilities(
            components, external.labels, folds=folds, n_classes=len(external.class_names)
        )
        probabilities, source = probe.probabilities, f"linear probe, {_PROBE_FOLDS}-fold cross-validated"
        probe_metrics = {"iterations": probe.iterations, "converged": probe.converged}
    agree = None if probabilities is None else agreement(probabilities, external.labels)
    return probabilities, {"probabilities": source, "probabilities_agree": agree, "probe": probe_metrics}


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
        source = metrics["probabilities"]
        print(f"probabilities ({source}): the most probable class is the label in {agree:.2%} of the rows")
    print(f"{out}: {metrics['n_kept']} of {metrics['n_total']} kept ({metrics['kept_share']:.2%}); see dropped.csv")


def _rows(external: ExternalFeatures, probabilities: NDArray[np.float32] | None) -> pa.Table:
    """Return the first columns of the points."""
    columns: dict[str, Any] = {"sample_id": np.arange(len(external.labels))}
    if external.paths is not None:
        columns["path"] = pa.array(external.paths, pa.string())
    columns["label"] = external.labels
    columns["label_name"] = pa.array([external.class_names[label] for label in external.labels], pa.string())
    if probabilities is not None:
        columns["predicted"] = probabilities.argmax(axis=1)
        columns["confidence"] = probabilities.max(axis=1)
    return pa.table(columns)
