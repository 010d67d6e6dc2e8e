"""`python -m pipeline landscape --study NAME`: measure the curvature of the loss around a study's trained weights.

Gahlot et al. (2020) state that filtering smooths the loss landscape, and do not measure it. This command computes the
largest eigenvalue of the Hessian of the loss, and slices along filter-normalized random directions (Li et al. 2018).
All arms use the same images, sampled independently of the filter: once training images, some of which only the full arm
has seen, and once test images, which none has seen. It measures the networks whose weights the study keeps
(`keep_weights`), one after the other. Run the same command again to resume.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import torch

from pipeline.artifacts.files import atomic_path
from pipeline.artifacts.prepared import (
    PreparedData,
    PreparedSplit,
    count_planted,
    load_prepared,
    planted_note,
    prepared_digest,
)
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.recorded import check_with_note
from pipeline.artifacts.stage_inputs import prepared_inputs, study_tables
from pipeline.artifacts.tables import read_parquet, write_parquet
from pipeline.commands import check_minimums, command_parser
from pipeline.config.base import MAX_SEED
from pipeline.errors import InputError, explain_out_of_memory
from pipeline.figures.curves import slice_figure
from pipeline.figures.rendering import svg, with_note
from pipeline.landscape.study import SCHEMA, SPLITS, Method, NetworkMeasurer, measured_rows
from pipeline.locks import file_lock
from pipeline.paths import DataPaths
from pipeline.reporting.landscape import slice_panels
from pipeline.runs.ledger import Ledger, has_network, load_network
from pipeline.stages.harness import StageContext, exit_codes, make_context

_IMAGES = 500


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = command_parser("landscape", __doc__, "params", "data", "work")
    parser.add_argument("--study", required=True, help="one of `studies` in the parameter file")
    parser.add_argument(
        "--images",
        type=int,
        help=f"images of each split for the loss (default: {_IMAGES}, or all of the smaller split if it has fewer)",
    )
    parser.add_argument("--directions", type=int, default=3, help="slices of each network (default: 3)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the images, directions and iterations (default: 0)"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Write data/landscape/ and print its files.

    Returns:
        0. Exits with 2 on bad input and 130 after SIGINT, as a stage does.
    """
    arguments = make_parser().parse_args(argv)
    with exit_codes():
        check_minimums(arguments, images=2, directions=1, seed=0)
        if arguments.seed > MAX_SEED:
            raise InputError(f"--seed {arguments.seed}: too large; give {MAX_SEED} or less")
        context = make_context("landscape", "study", arguments)
        with closing(context.log), file_lock(context.work.lock(context.name), context.name):
            tables = study_tables(context.item_name, context.data)
            check_with_note(context.data, [prepared_inputs(context.data), tables], context.log.info)
            data = load_prepared(context.data, folder=context.image_folder)
            splits = dict(zip(SPLITS, (data.train, data.test), strict=True))
            method = _method(arguments, {split: len(images.labels) for split, images in splits.items()})
            rows = _measure(context, data, splits, method)
            n_planted = count_planted(context.data)
            note = None if n_planted is None else planted_note(n_planted)
            _write(context, rows, method, note)
    study = context.item_name
    seeds = sorted({row["seed"] for row in rows})
    networks = len({row["fingerprint"] for row in rows})
    print(f"{context.data.landscape(study)}: {networks} networks of seeds {seeds}")
    print(f"{context.data.landscape_figure(study)}: mean slices")
    if len(seeds) < len(context.params.studies[study].seeds):
        print(
            f"for the other seeds: set studies.{study}.keep_weights: all, then run `dvc repro` and this command again"
        )
    if note:
        print(note)
    print("to add it to the report: dvc repro --force --single-item report")
    return 0


def _method(arguments: argparse.Namespace, sizes: Mapping[str, int]) -> Method:
    """Return the method for the arguments; `sizes`: split -> its number of images."""
    images = arguments.images
    for split, size in sizes.items():
        if images is not None and images > size:
            raise InputError(f"--images {images}: there are only {size} {split} images; give {size} or fewer")
    return Method(
        images=min(_IMAGES, *sizes.values()) if images is None else images,
        directions=arguments.directions,
        seed=arguments.seed,
    )


def _measure(
    context: StageContext, data: PreparedData, splits: Mapping[str, PreparedSplit], method: Method
) -> list[dict[str, Any]]:
    study, ledger = context.item_name, Ledger(context.work.ledger)
    runs = [run for run in read_parquet(context.data.runs(study)).to_pylist() if has_network(run, ledger)]
    # Before the first measurement, which takes minutes.
    for run in runs:
        load_network(run, ledger, data, study=study)
    measurer = NetworkMeasurer(
        splits,
        method,
        data_digest=prepared_digest(context.data),
        folder=context.work.landscape,
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    )
    too_many = f"--images {method.images}: a network and the loss of this many images do not fit the memory; give fewer"
    with explain_out_of_memory(too_many), context.log.progress(context.name, len(runs), "networks") as progress:
        rows = measured_rows(runs, ledger.weights, measurer, progress.update)
    if not rows:
        raise InputError(
            f"{context.work.ledger}: has no weights of study {study}; run `dvc repro` here, or import runs with "
            "`python -m pipeline runs import`"
        )
    return rows


def _write(context: StageContext, rows: Sequence[Mapping[str, Any]], method: Method, note: str | None) -> None:
    paths, study = context.data, context.item_name
    # An interruption between the two writes must not leave the figure of older numbers.
    paths.landscape_figure(study).unlink(missing_ok=True)
    write_parquet(paths.landscape(study), pa.Table.from_pylist(list(rows), schema=SCHEMA))
    with atomic_path(paths.landscape_figure(study)) as temporary:
        figure = slice_figure(slice_panels(rows, read_parquet(paths.runs(study)).to_pylist()))
        temporary.write_bytes(svg(with_note(figure, note)))
    _write_provenance(paths, study, method)


def _write_provenance(paths: DataPaths, study: str, method: Method) -> None:
    write_provenance(
        paths.provenance("landscape", study),
        stage=f"landscape@{study}",
        parameters=asdict(method),
        inputs=[paths.runs(study), *map(paths.images, SPLITS), *map(paths.manifest, SPLITS)],
        outputs=[paths.landscape(study), paths.landscape_figure(study)],
    )
