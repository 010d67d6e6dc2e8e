"""Outputs of `filter-features`: lines and decisions of the dropped rows, and a project for the visualizer.

With `--embedding` and `--images` there is a project; with `--images` it has the pictures of the rows.
"""

import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.artifacts.overrides import Override, read_overrides
from pipeline.artifacts.provenance import read_provenance, sha256_of_file
from pipeline.commands.filter_features.inputs import ExternalFeatures, read_external_images
from pipeline.commands.filter_features.settings import FeatureSettings
from pipeline.errors import InputError, printable
from pipeline.filtering.visualizer_project import (
    VisualizerProject,
    check_project_folder,
    data_paths,
    params_file,
    project_parameters,
    write_project,
)
from pipeline.run_log import RunLog
from pipeline.scoring.base import ScorerInputs
from pipeline.stats.formatting import MISSING, aligned_lines

_REASON_WIDTH = 72
# Names have the form of params.yaml, in which no network is without a name.
_UNNAMED_NETWORK = "timm/external_features"
# In place of pictures.
_GRAY, _GRAY_SIDE = 216, 8

STAGE = "filter-features"
"""Name in the provenance file."""

OVERRIDES = "overrides.csv"
PROVENANCE = "provenance.json"


def suspect_lines(points: pa.Table, n: int) -> Iterator[str]:
    """Yield a heading and a line for each of the first `n` dropped rows, the most suspect first.

    Args:
        points: as `points_table` returns them. A suggested label is shown where it differs from the label.
    """
    dropped = points.filter(pc.invert(points["keep"]))
    order = dropped.sort_by([("score", "descending"), ("sample_id", "ascending")]).slice(0, n)
    name = "path" if "path" in points.column_names else "sample_id"
    rows: list[tuple[str, ...]] = [("score", name, "label", "suggested", "reason")]
    for row in order.to_pylist():
        suggested = row.get("suggested_label_name", row["label_name"])
        cells = (
            f"{row['score']:.3f}",
            str(row[name]),
            row["label_name"],
            MISSING if suggested == row["label_name"] else suggested,
            _shortened(row["reason"]),
        )
        # Names in a label file may contain control characters.
        rows.append(tuple(map(printable, cells)))
    yield from aligned_lines(rows, left=len(rows[0]))


def filter_decisions(points: pa.Table) -> Iterator[Override]:
    """Yield the decision on each image; equal points give equal bytes, so there is no time.

    Args:
        points: as `points_table` returns them, with path and sha256.
    """
    names = ["path", "sha256", "keep", "reason", "label_name", "corrected_label_name"]
    for line, row in enumerate(points.select(names).to_pylist(), start=2):
        relabeled = row["keep"] and row["corrected_label_name"] != row["label_name"]
        yield Override(
            path=row["path"],
            sha256=row["sha256"],
            decision="relabel" if relabeled else "keep" if row["keep"] else "drop",
            label=row["corrected_label_name"] if relabeled else "",
            note="" if row["keep"] else f"filter-features: {row['reason']}",
            timestamp="",
            line=line,
        )


def _shortened(text: str) -> str:
    return text if len(text) <= _REASON_WIDTH else f"{text[: _REASON_WIDTH - 3]}..."


@dataclass(frozen=True, kw_only=True, eq=False)
class RowPictures:
    """Pictures of the N rows, and the project that shows them.

    Attributes:
        pixels: uint8 (N, H, W, 3); gray without pictures.
        paths, sha256: (N,) by which decisions name the rows: of the labels; or numbers, and digests of the features.
        folder: of the project.
        network: that gave the features.
        parameters: of the project.
    """

    pixels: NDArray[np.uint8]
    paths: Sequence[str]
    sha256: Sequence[str]
    folder: Path
    network: str
    parameters: Mapping[str, Any]


def check_out_folder(out: Path, overrides: Path | None = None) -> None:
    """Check that no results of a stage and no decisions of people would be overwritten.

    Args:
        overrides: file of `--overrides`.

    Raises:
        InputError: `out` is a file or has results of a stage; its overrides.csv is not as this command wrote it, or is
            `overrides`.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: a file; give a folder, or move the file away")
    record = out / PROVENANCE
    recorded: Mapping[str, str] = {}
    if record.exists():
        provenance = read_provenance(record)
        if provenance["stage"] != STAGE:
            raise InputError(f"--out {out}: has the results of {provenance['stage']}; give another folder")
        recorded = provenance["outputs"]
    file, digest = out / OVERRIDES, None
    # Another run into this folder may remove its own.
    with suppress(FileNotFoundError):
        digest = sha256_of_file(file)
    if digest is not None and recorded.get(OVERRIDES) != digest:
        raise InputError(
            f"--out {out}: its {OVERRIDES} has decisions that {STAGE} did not write; give another folder, or move the "
            "file away"
        )
    if overrides is not None and overrides.resolve() == file.resolve():
        raise InputError(f"--overrides {overrides}: this command replaces it; give a copy of it")


def check_options(network: str | None, *, has_project: bool) -> None:
    """Check that `--network` names the network of a project.

    Raises:
        InputError: no project is written.
    """
    if network is not None and not has_project:
        raise InputError(
            f"--network: {network} is a name for the visualizer; add --images or --embedding, or leave it out"
        )


def read_pictures(
    external: ExternalFeatures,
    settings: FeatureSettings,
    images: Path | None,
    network: str | None,
    folder: Path,
    log: RunLog,
) -> tuple[ExternalFeatures, RowPictures]:
    """Return the features, with images also with a path and a SHA-256 for each row; and the pictures.

    Args:
        images: see `read_external_images`; None for gray in place of pictures.
        network: that gave the features; None if it has no name.
        folder: of the project, which is not written yet.

    Raises:
        InputError: as `check_project_folder`, `project_parameters` and `read_external_images`.
    """
    check_project_folder(folder)
    network = network or _UNNAMED_NETWORK
    parameters = project_parameters(
        network,
        "images" if images is None else str(images),
        reduce=settings.reduce.model_dump(mode="json"),
        filter_=settings.filter.model_dump(mode="json"),
        source="--network",
    )
    if images is None:
        n, given = len(external.labels), external.paths or []
        pixels = np.broadcast_to(np.uint8(_GRAY), (n, _GRAY_SIDE, _GRAY_SIDE, 3))
        # Decisions need a name for each row.
        paths = given if len(set(given)) == n else [str(row) for row in range(n)]
        sha256 = external.sha256 or [hashlib.sha256(row.tobytes()).hexdigest() for row in external.features]
    else:
        external, pixels = read_external_images(external, images, log=log)
        assert external.paths is not None, "with images each row has a path"
        assert external.sha256 is not None, "with images each row has a hash"
        paths, sha256 = external.paths, external.sha256
    pictures = RowPictures(
        pixels=pixels, paths=paths, sha256=sha256, folder=folder, network=network, parameters=parameters
    )
    return external, pictures


def decisions_to_apply(given: Path | None, project: Path) -> Path | None:
    """Return the file of decisions: `given`, or that of the project, in which the visualizer saves them.

    Args:
        project: its folder, which an earlier run may have written.

    Raises:
        InputError: both have decisions.
    """
    decided = data_paths(project).overrides
    if not decided.exists() or not read_overrides(decided):
        return given
    if given is not None and not is_of_project(given, project):
        raise InputError(
            f"--overrides {given}: {decided} has decisions too; put both into one, and move the other away"
        )
    return decided


def is_of_project(file: Path, project: Path) -> bool:
    """Return whether a file of decisions is that in which the visualizer saves them."""
    return file.resolve() == data_paths(project).overrides.resolve()


def write_pictures(
    pictures: RowPictures,
    external: ExternalFeatures,
    inputs: ScorerInputs,
    points: pa.Table,
    metrics: Mapping[str, Any],
    overrides: Path | None,
) -> Iterator[str]:
    """Write the project, and yield lines that say how to open it.

    Args:
        inputs: of the scorers, with an embedding, and with probabilities unless there is one class.
        points, metrics: of the filter.
        overrides: the decisions that it applied.
    """
    n, data = len(points), data_paths(pictures.folder)
    for name, values in (("path", pictures.paths), ("sha256", pictures.sha256)):
        if name in points.column_names:
            points = points.drop_columns(name)
        points = points.append_column(name, pa.array(values, pa.string()))
    if inputs.probabilities is None:
        # Rows without labels are of one class.
        inputs = replace(inputs, probabilities=np.ones((n, 1), dtype=np.float32))
        points = points.append_column("predicted", pa.array(np.zeros(n, dtype=np.int64)))
        points = points.append_column("confidence", pa.array(np.ones(n, dtype=np.float32)))
    write_project(
        pictures.folder,
        VisualizerProject(
            parameters=pictures.parameters,
            network=pictures.network,
            class_names=external.class_names,
            images=pictures.pixels,
            inputs=inputs,
            points=points,
            metrics=metrics,
            command=STAGE,
        ),
        overrides=[] if overrides is None else read_overrides(overrides),
    )
    options = shlex.join(["--params", str(params_file(pictures.folder)), "--data", str(data.root)])
    yield f"to see them and decide: batchsieve viz {options}"
    yield f"as one page: batchsieve export suspects.html {options}"
