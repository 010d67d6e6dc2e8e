"""`filter`: which training images to drop, and why, by one network's features, map and predictions."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.arrays import open_array
from pipeline.artifacts.atomic import remove_leftovers
from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.overrides import Override, locate_overrides, read_overrides
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import list_column, read_parquet, write_csv, write_parquet
from pipeline.errors import InputError
from pipeline.filtering.sieve import Labelling, sieve
from pipeline.filtering.tables import filter_metrics, kept_and_dropped, points_table
from pipeline.selection.evidence import Evidence
from pipeline.stages.harness import StageContext, run_stage

_MANIFEST = {
    "sample_id": pa.int64(),
    "path": pa.string(),
    "sha256": pa.string(),
    "label": pa.int64(),
    "label_name": pa.string(),
}
_PREDICTIONS = {"sample_id": pa.int64(), "predicted": pa.int64(), "confidence": pa.float32()}
_EMBEDDING = {"sample_id": pa.int64(), "neighbours": pa.list_(pa.int32())}


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """One network's training images, row = sample_id; `images` are the columns that the points begin with."""

    images: pa.Table
    evidence: Evidence
    class_names: list[str]
    overrides: dict[int, Override]


def filter_images(context: StageContext) -> None:
    """Write everything in data/filter/<network>/ for `context.item`, a network."""
    assert context.item is not None
    data, config, network = context.data, context.params.filter, context.item
    remove_leftovers(data.points(network).parent)
    inputs = _load(context)
    known = Labelling(network=network, names=inputs.class_names, overrides=inputs.overrides)
    sieved = sieve(inputs.evidence, config, known)
    points = points_table(inputs.images, inputs.evidence, sieved)
    metrics = filter_metrics(inputs.evidence, sieved, config, known)
    kept, dropped = kept_and_dropped(points)
    write_parquet(data.points(network), points)
    write_csv(data.kept(network), kept)
    write_csv(data.dropped(network), dropped)
    write_json(data.filter_metrics(network), metrics)
    write_provenance(
        data.provenance("filter", network),
        stage=context.name,
        parameters=config.model_dump(mode="json"),
        inputs=[*_files(context), data.overrides],
        outputs=[data.points(network), data.kept(network), data.dropped(network), data.filter_metrics(network)],
    )
    if metrics["share_note"]:
        context.log.info(f"filter.drop_share: {metrics['share_note']}")
    context.log.info(
        f"{network}: {metrics['n_kept']} of {metrics['n_total']} images kept ({metrics['kept_share']:.2%}); "
        f"{metrics['n_noise']} are suspect by {config.scorer.name}, {len(inputs.overrides)} decided by hand"
    )
    context.images.append(metrics["n_total"])


def _files(context: StageContext) -> list[Path]:
    data, network = context.data, str(context.item)
    return [
        data.manifest("train"),
        data.predictions(network),
        data.probabilities(network),
        data.embedding(network),
        data.components(network),
        data.maps(network),
    ]


def _load(context: StageContext) -> Inputs:
    data, network = context.data, str(context.item)
    manifest = read_parquet(data.manifest("train"), _MANIFEST)
    n = len(manifest)
    _check_rows(manifest, n, data.manifest("train"))
    predictions = read_parquet(data.predictions(network), _PREDICTIONS)
    _check_rows(predictions, n, data.predictions(network))
    embedding = read_parquet(data.embedding(network), _EMBEDDING)
    _check_rows(embedding, n, data.embedding(network))
    labels = manifest["label"].to_numpy()
    names = dict(zip(labels.tolist(), manifest["label_name"].to_pylist(), strict=True))
    images = manifest.select(list(_MANIFEST))
    for column in ("predicted", "confidence"):
        images = images.append_column(column, predictions[column])
    return Inputs(
        images=images,
        evidence=Evidence(
            labels=labels,
            maps=_finite(open_array(data.maps(network), dtype=np.float32, ndim=3), 1, data.maps(network), n),
            components=_finite(
                open_array(data.components(network), dtype=np.float32, ndim=2, rows=n), 0, data.components(network), n
            ),
            neighbours=_neighbours(embedding, n, data.embedding(network)),
            probabilities=_probabilities(data.probabilities(network), labels),
        ),
        class_names=[names.get(label, "") for label in range(max(names) + 1)],
        overrides=locate_overrides(
            read_overrides(data.overrides),
            file=data.overrides,
            paths=manifest["path"].to_pylist(),
            sha256=manifest["sha256"].to_pylist(),
        ),
    )


def _check_rows(table: pa.Table, n: int, path: Path) -> None:
    if not np.array_equal(table["sample_id"].to_numpy(), np.arange(n)):
        raise InputError(
            f"{path}: its {len(table)} rows are not those of the {n} training images; delete it and run `dvc repro`"
        )


def _finite(values: NDArray[np.float32], axis: int, path: Path, n: int) -> NDArray[np.float32]:
    """Values with a row for each of `n` images along `axis`."""
    if values.shape[axis] != n:
        raise InputError(f"{path}: has {values.shape[axis]} rows for {n} images; delete it and run `dvc repro`")
    bad = ~np.isfinite(values).all(axis=tuple(other for other in range(values.ndim) if other != axis))
    if bad.any():
        raise InputError(f"{path}: row {int(bad.argmax())} is not finite; delete it and run `dvc repro`")
    return values


def _probabilities(path: Path, labels: NDArray[np.int64]) -> NDArray[np.float32]:
    values = _finite(open_array(path, dtype=np.float32, ndim=2, rows=len(labels)), 0, path, len(labels))
    if values.shape[1] <= labels.max() or values.min() < 0 or abs(values.sum(axis=1) - 1).max() > 1e-3:
        raise InputError(f"{path}: rows are not probabilities of the classes; delete it and run `dvc repro`")
    return values


def _neighbours(embedding: pa.Table, n: int, path: Path) -> NDArray[np.int32]:
    neighbours: NDArray[np.int32] = list_column(embedding, "neighbours", path)
    if not np.isin(neighbours, np.arange(n)).all():
        raise InputError(f"{path}: names neighbours that are no training images; delete it and run `dvc repro`")
    return neighbours


def main() -> None:
    """Run the stage on the process's arguments and exit."""
    run_stage("filter", filter_images, item="network")


if __name__ == "__main__":
    main()
