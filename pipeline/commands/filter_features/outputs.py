"""Outputs of `filter-features`: lines and decisions of the dropped rows, and a project for the visualizer.

With `--images` the project has the rows with their pictures.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.artifacts.overrides import Override, read_overrides
from pipeline.commands.filter_features.inputs import ExternalFeatures, read_external_images
from pipeline.commands.filter_features.settings import FeatureSettings
from pipeline.errors import InputError
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


def suspect_lines(points: pa.Table, n: int) -> Iterator[str]:
    """Yield a heading and a line for each of the first `n` dropped rows, the most suspect first.

    Args:
        points: as `points_table` returns them. A suggested label is shown where it differs from the label.
    """
    dropped = points.filter(pc.invert(points["keep"]))
    order = dropped.sort_by([("score", "descending"), ("sample_id", "ascending")]).slice(0, n)
    name = "path" if "path" in points.column_names else "sample_id"
    rows = [("score", name, "label", "suggested", "reason")]
    for row in order.to_pylist():
        suggested = row.get("suggested_label_name", row["label_name"])
        rows.append(
            (
                f"{row['score']:.3f}",
                str(row[name]),
                row["label_name"],
                MISSING if suggested == row["label_name"] else suggested,
                _shortened(row["reason"]),
            )
        )
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
        pixels: uint8 (N, H, W, 3).
        folder: of the project.
        network: that gave the features.
        parameters: of the project.
    """

    pixels: NDArray[np.uint8]
    folder: Path
    network: str
    parameters: Mapping[str, Any]


def check_options(images: Path | None, network: str | None) -> None:
    """Check that `--images` and `--network` are given together.

    Raises:
        InputError: only one is.
    """
    if (images is None) != (network is None):
        missing, given = ("--network", "--images") if network is None else ("--images", "--network")
        raise InputError(
            f"{missing}: missing, and {given} is given; give both, e.g. --images photos --network "
            "timm/vit_small_patch14_dinov2, the network that gave the features"
        )


def read_pictures(
    external: ExternalFeatures, settings: FeatureSettings, images: Path, network: str, folder: Path, log: RunLog
) -> tuple[ExternalFeatures, RowPictures]:
    """Return the features with a path and a SHA-256 for each row, and the pictures.

    Args:
        images: see `read_external_images`.
        network: that gave the features.
        folder: of the project, which is not written yet.

    Raises:
        InputError: as `check_project_folder`, `project_parameters` and `read_external_images`.
    """
    check_project_folder(folder)
    parameters = project_parameters(
        network,
        str(images),
        reduce=settings.reduce.model_dump(mode="json"),
        filter_=settings.filter.model_dump(mode="json"),
        source="--network",
    )
    external, pixels = read_external_images(external, images, log=log)
    return external, RowPictures(pixels=pixels, folder=folder, network=network, parameters=parameters)


def decisions_to_apply(given: Path | None, pictures: RowPictures | None) -> Path | None:
    """Return the file of decisions: `given`, or that of the project, in which the visualizer saves them.

    Raises:
        InputError: both have decisions.
    """
    decided = data_paths(pictures.folder).overrides if pictures else None
    if decided is None or not decided.exists():
        return given
    if given is not None and given.resolve() != decided.resolve() and read_overrides(decided):
        raise InputError(
            f"--overrides {given}: {decided} has decisions too; put both into one, and move the other away"
        )
    return given or decided


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
            command="filter-features --images",
        ),
        overrides=[] if overrides is None else read_overrides(overrides),
    )
    options = f"--params {params_file(pictures.folder)} --data {data.root}"
    yield f"to see them and decide: batchsieve viz {options}"
    yield f"as one page: batchsieve export suspects.html {options}"
