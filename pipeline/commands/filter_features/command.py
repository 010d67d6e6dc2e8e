"""`python -m pipeline filter-features`: filter external features, without images or training.

Takes any array (N, D), e.g. of another pretrained network. Labels are optional: without them all rows are one class,
and scorers that compare no labels find isolated rows. With --scorer and --drop-fraction no params.yaml is needed;
otherwise its sections `reduce` and `filter` apply as they do to the pipeline's features. t-SNE runs only for scorers on
the embedding, or with --embedding or --images.

    python -m pipeline filter-features --features f.npy --labels y.csv --scorer knn_agreement --drop-fraction 0.05 \\
        --out suspects

With the columns path and sha256 in the labels (--labels data/prepare/train.parquet has them), overrides.csv has the
decision on each image. Copied to data/overrides.csv, it makes the filter keep the same images, and a study trains on
them.

With --embedding or --images the visualizer shows the rows on the embedding, with --images with their pictures. The
network named by --network is the one that gave the features.
"""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.files import atomic_path, write_array, write_json
from pipeline.artifacts.overrides import Override, locate_overrides, read_overrides, write_overrides
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import protect_cells, write_csv, write_parquet
from pipeline.commands import command_parser
from pipeline.commands.filter_features.inputs import ExternalFeatures, read_external_features
from pipeline.commands.filter_features.outputs import (
    OVERRIDES,
    PROVENANCE,
    STAGE,
    RowPictures,
    check_options,
    check_out_folder,
    decisions_to_apply,
    filter_decisions,
    is_of_project,
    read_pictures,
    suspect_lines,
    write_pictures,
)
from pipeline.commands.filter_features.settings import (
    FEATURE_SCORERS,
    FeatureSettings,
    feature_settings,
)
from pipeline.config.filter import FilterConfig
from pipeline.embedding import EmbeddingResult, ReducedFeatures, embed, reduce_features
from pipeline.errors import InputError
from pipeline.features.linear import cross_validated_probabilities, probe_folds
from pipeline.filtering.apply import FilterContext, apply_filter, check_estimate
from pipeline.filtering.tables import filter_metrics, kept_and_dropped, points_table
from pipeline.parallel import task_pool
from pipeline.run_log import stderr_log
from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.registry import agreement, check_scorer, needs_with_members

_PROBE_FOLDS = 5
_SHOWN = 10
"""Suspects to print."""
_PROJECT = "viz"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("filter-features", __doc__, "params")
    parser.add_argument("--features", type=Path, required=True, help=".npy, float (N, D)")
    parser.add_argument(
        "--labels",
        type=Path,
        help="UTF-8 CSV, N rows with a column label; columns path and sha256 are copied to the results. "
        "Or a manifest of data/prepare (.parquet)",
    )
    parser.add_argument(
        "--probabilities",
        type=Path,
        help=".npy, float (N, C); classes by number if all labels are whole numbers, else in alphabetical order",
    )
    parser.add_argument("--scorer", choices=FEATURE_SCORERS, help="default: filter.scorer of the parameters")
    parser.add_argument(
        "--drop-fraction",
        type=float,
        metavar="F",
        help="share of the rows to drop (default: the rule of the parameters)",
    )
    parser.add_argument(
        "--neighbors",
        type=int,
        metavar="K",
        help="nearest neighbors, also of a scorer with k (default: the parameters)",
    )
    parser.add_argument("--overrides", type=Path, help="decisions in the format of data/overrides.csv to apply")
    parser.add_argument(
        "--embedding",
        action="store_true",
        help=f"also compute the t-SNE embedding, and write OUT/{_PROJECT}, which the visualizer opens",
    )
    parser.add_argument(
        "--images",
        type=Path,
        metavar="PATH",
        help="as --embedding, with pictures: a folder, to which the column path of the labels is relative; or .npy, "
        "uint8 (N, H, W, 3)",
    )
    parser.add_argument(
        "--network",
        metavar="NAME",
        help="the network that gave the features, as the visualizer names it: timm/NAME, or resnet18 to resnet152; for "
        "--embedding and --images",
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
    has_project = arguments.embedding or arguments.images is not None
    check_options(arguments.network, has_project=has_project)
    settings = feature_settings(
        arguments.params,
        scorer=arguments.scorer,
        drop_fraction=arguments.drop_fraction,
        neighbors=arguments.neighbors,
    )
    check_out_folder(arguments.out, arguments.overrides)
    external = read_external_features(arguments.features, arguments.labels, arguments.probabilities)
    settings = settings.fitted_to(external.features) if not arguments.params.exists() else settings
    pictures, project = None, arguments.out / _PROJECT
    if has_project:
        external, pictures = read_pictures(
            external, settings, arguments.images, arguments.network, project, stderr_log(None)
        )
    arguments.overrides = decisions_to_apply(arguments.overrides, project)
    overrides = _located_overrides(external, pictures, arguments.overrides, project)
    _run(external, overrides, settings, pictures, arguments)
    return 0


def _run(
    external: ExternalFeatures,
    overrides: Mapping[int, Override],
    settings: FeatureSettings,
    pictures: RowPictures | None,
    arguments: argparse.Namespace,
) -> None:
    out, config, log = arguments.out, settings.filter, stderr_log(None)
    scorer = config.scorer.model_dump()
    folds = probe_folds_of(external, config, shown=pictures is not None)
    _check_filter(external, settings, probed=folds is not None)
    reduced: EmbeddingResult | ReducedFeatures
    embeddings = None
    with task_pool(
        settings.dask.scheduler, workers=settings.dask.workers, threads=settings.reduce.tsne.n_jobs
    ) as map_fn:
        file = out / "components.npy"
        if pictures or "embedding" in needs_with_members(scorer):
            reduced = embed(
                external.features, external.labels, settings.reduce, components_file=file, log=log, map_fn=map_fn
            )
            embeddings = reduced.coordinates
        else:
            reduced = reduce_features(external.features, settings.reduce, components_file=file, log=log, map_fn=map_fn)
        probabilities, probability_metrics = _class_probabilities(external, reduced.components, folds)
        inputs = ScorerInputs(
            labels=external.labels,
            embeddings=embeddings,
            components=reduced.components,
            neighbors=reduced.neighbors.rows,
            probabilities=probabilities,
            map_fn=map_fn,
        )
        context = FilterContext(network=arguments.features.stem, class_names=external.class_names, overrides=overrides)
        filtered = apply_filter(inputs, config, context, fix="give more rows")
    inputs = replace(inputs, map_fn=map)  # that of the pool has ended
    points = points_table(_rows(external, probabilities), inputs, filtered, external.class_names)
    metrics = {
        **filter_metrics(inputs, filtered, config, context),
        **probability_metrics,
        "reduce": reduced.metrics,
    }
    _write(out, points, embeddings, metrics, settings, arguments)
    print("\n".join(suspect_lines(points, _SHOWN)))
    if filtered.estimate is not None:
        print(f"filter.drop_fraction: {filtered.estimate}")
    _print_summary(out, points, metrics)
    if pictures is not None:
        print("\n".join(write_pictures(pictures, external, inputs, points, metrics, arguments.overrides)))


def _located_overrides(
    external: ExternalFeatures, pictures: RowPictures | None, file: Path | None, project: Path
) -> dict[int, Override]:
    if file is None:
        return {}
    paths: Sequence[str] | None = external.paths
    sha256: Sequence[str] | None = external.sha256
    of_project = is_of_project(file, project)
    if pictures is not None and of_project:
        paths, sha256 = pictures.paths, pictures.sha256
    if paths is None or sha256 is None:
        if of_project:
            raise InputError(
                f"{file}: names rows by path and sha256, which the labels lack; add --embedding or --images as in the "
                "run that wrote it, or move the file away"
            )
        raise InputError(f"--overrides {file}: names images by path and sha256; give --labels with both columns")
    return locate_overrides(
        read_overrides(file),
        file=file,
        paths=paths,
        sha256=sha256,
        class_names=external.class_names,
    )


def probe_folds_of(external: ExternalFeatures, config: FilterConfig, *, shown: bool) -> NDArray[np.int64] | None:
    """Return the (N,) folds of a linear probe if class probabilities are needed and the user gives none.

    Args:
        shown: whether the visualizer will show suggested labels.
    """
    needs = needs_with_members(config.scorer.model_dump())
    if shown or config.drop_fraction == "estimated":
        needs.add("probabilities")
    if external.probabilities is not None or "probabilities" not in needs or len(external.class_names) < 2:
        return None
    return probe_folds(
        external.labels, _PROBE_FOLDS, seed=0, key="filter.scorer", fix="give --probabilities, or take knn_agreement"
    )


def _check_filter(external: ExternalFeatures, params: FeatureSettings, *, probed: bool) -> None:
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
    out: Path,
    points: pa.Table,
    embeddings: NDArray[np.float32] | None,
    metrics: Mapping[str, Any],
    settings: FeatureSettings,
    arguments: argparse.Namespace,
) -> None:
    # People may have decided while the filter ran.
    check_out_folder(out)
    # Those of an earlier run would not fit. A kill below must leave no overrides.csv that the record does not list.
    (out / OVERRIDES).unlink(missing_ok=True)
    (out / "maps.npy").unlink(missing_ok=True)
    if embeddings is not None:
        write_array(out / "maps.npy", embeddings)
    kept, dropped = kept_and_dropped(points)
    write_parquet(out / "points.parquet", points)
    write_csv(out / "kept.csv", protect_cells(kept))
    write_csv(out / "dropped.csv", protect_cells(dropped))
    write_json(out / "metrics.json", metrics)
    names = ["points.parquet", "kept.csv", "dropped.csv", "metrics.json"]
    write_record = partial(
        write_provenance,
        out / PROVENANCE,
        stage=STAGE,
        parameters={name: getattr(settings, name).model_dump(mode="json") for name in ("reduce", "filter")},
        inputs=list(filter(None, (arguments.features, arguments.labels, arguments.probabilities, arguments.overrides))),
        outputs=[out / name for name in names],
    )
    if "sha256" not in points.column_names:
        write_record()
        return
    with atomic_path(out / OVERRIDES) as temporary:
        write_overrides(temporary, filter_decisions(points))
        write_record(renamed_later={out / OVERRIDES: temporary})
        # The digests of large inputs take minutes.
        check_out_folder(out)


def _print_summary(out: Path, points: pa.Table, metrics: Mapping[str, Any]) -> None:
    if metrics["share_note"]:
        print(f"filter.drop_fraction: {metrics['share_note']}")
    if (agree := metrics["probabilities_agree"]) is not None:
        source = metrics["probabilities"]
        print(f"probabilities ({source}): the most probable class is the label in {agree:.2%} of the rows")
    print(f"{out}: {metrics['n_kept']} of {metrics['n_total']} kept ({metrics['kept_share']:.2%}); see dropped.csv")
    if "sha256" in points.column_names:
        copy = shlex.join(["cp", str(out / OVERRIDES), "data/"])
        print(f"to train on them in a project with these images: {copy} && dvc repro")


def _rows(external: ExternalFeatures, probabilities: NDArray[np.float32] | None) -> pa.Table:
    """Return the first columns of the points."""
    columns: dict[str, Any] = {"sample_id": np.arange(len(external.labels))}
    if external.paths is not None:
        columns["path"] = pa.array(external.paths, pa.string())
        if external.sha256 is not None:
            columns["sha256"] = pa.array(external.sha256, pa.string())
    columns["label"] = external.labels
    columns["label_name"] = pa.array([external.class_names[label] for label in external.labels], pa.string())
    if probabilities is not None:
        columns["predicted"] = probabilities.argmax(axis=1)
        columns["confidence"] = probabilities.max(axis=1)
    return pa.table(columns)
