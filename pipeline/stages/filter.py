"""`filter`: which training images to drop, and why, by one network's map."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.atomic import remove_leftovers
from pipeline.artifacts.json_file import write_json
from pipeline.artifacts.overrides import Override, locate_overrides, read_overrides
from pipeline.artifacts.provenance import write_provenance
from pipeline.artifacts.tables import read_parquet, write_csv, write_parquet
from pipeline.config.filter import FilterConfig
from pipeline.errors import InputError
from pipeline.selection.budgets import curve_thresholds, shares_above
from pipeline.selection.decision import Decision, decide
from pipeline.selection.evidence import Evidence
from pipeline.selection.reasons import by_hand, dbscan_reason, neighbour_phrases
from pipeline.stages.harness import StageContext, run_stage

_MANIFEST = {
    "sample_id": pa.int64(),
    "path": pa.string(),
    "sha256": pa.string(),
    "label": pa.int64(),
    "label_name": pa.string(),
}
_PREDICTIONS = {"sample_id": pa.int64(), "predicted": pa.int64(), "confidence": pa.float32()}
_EMBEDDING = {"sample_id": pa.int64(), "x": pa.float64(), "y": pa.float64(), "neighbours": pa.list_(pa.int32())}


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """One network's training images, row = sample_id."""

    manifest: pa.Table
    predictions: pa.Table
    evidence: Evidence
    neighbours: NDArray[np.int32]
    class_names: list[str]
    overrides: dict[int, Override]


def filter_images(context: StageContext) -> None:
    """Write everything in data/filter/<network>/ for `context.item`, a network."""
    assert context.item is not None
    data, config = context.data, context.params.filter
    remove_leftovers(data.points(context.item).parent)
    inputs = _load(context)
    _check_class_sizes(inputs, config)
    decision = decide(
        inputs.evidence,
        method=config.method,
        min_samples=config.min_samples,
        eps=config.eps,
        drop_share=config.drop_share,
    )
    keep = ~decision.is_noise
    for row, override in inputs.overrides.items():
        keep[row] = override.decision == "keep"
    if not config.allow_empty:
        _check_no_class_is_empty(inputs, config, decision, keep)
    elif not keep.any():
        raise InputError("filter: drops every image; raise eps, lower drop_share, or keep some in data/overrides.csv")
    _write(context, inputs, decision, keep)
    if decision.share_note:
        context.log.info(f"filter.drop_share: {decision.share_note}")
    context.log.info(
        f"{context.item}: {keep.sum()} of {len(keep)} images kept ({keep.mean():.2%}) at eps {decision.eps:.4g}; "
        f"{decision.is_noise.sum()} are noise, {len(inputs.overrides)} decided by hand"
    )
    context.images.append(len(keep))


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
    return Inputs(
        manifest=manifest,
        predictions=predictions,
        evidence=Evidence(coordinates=_coordinates(embedding, data.embedding(network)), labels=labels),
        neighbours=_neighbours(embedding, n, data.embedding(network)),
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


def _coordinates(embedding: pa.Table, path: Path) -> NDArray[np.float64]:
    coordinates = np.column_stack([embedding["x"].to_numpy(), embedding["y"].to_numpy()])
    bad = ~np.isfinite(coordinates).all(axis=1)
    if bad.any():
        raise InputError(
            f"{path}: row {int(bad.argmax())} has no finite place on the map; delete it and run `dvc repro`"
        )
    return coordinates


def _neighbours(embedding: pa.Table, n: int, path: Path) -> NDArray[np.int32]:
    column = embedding["neighbours"].combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    if len(flat) == 0 or len(flat) % n or (np.diff(column.offsets.to_numpy()) != len(flat) // n).any():
        raise InputError(f"{path}: images have different numbers of neighbours; delete it and run `dvc repro`")
    if not np.isin(flat, np.arange(n)).all():
        raise InputError(f"{path}: names neighbours that are no training images; delete it and run `dvc repro`")
    neighbours: NDArray[np.int32] = flat.reshape(n, -1).astype(np.int32)
    return neighbours


def _check_class_sizes(inputs: Inputs, config: FilterConfig) -> None:
    for label, count in zip(*np.unique(inputs.evidence.labels, return_counts=True), strict=True):
        if count < config.min_samples:
            raise InputError(
                f"filter.min_samples: {config.min_samples}, but class {inputs.class_names[label]!r} has {count} "
                f"images; give at most {count}, or add images to the class"
            )


def _check_no_class_is_empty(inputs: Inputs, config: FilterConfig, decision: Decision, keep: NDArray[np.bool_]) -> None:
    key = "eps" if config.drop_share is None else "drop_share"
    mend = {"eps": "raise it", "drop_share": "lower it"}[key]
    for label in np.unique(inputs.evidence.labels):
        rows = inputs.evidence.labels == label
        if not keep[rows].any():
            raise InputError(
                f"filter.{key}: {getattr(config, key)} leaves none of the {rows.sum()} images of class "
                f"{inputs.class_names[label]!r} ({decision.is_noise[rows].sum()} are noise at eps {decision.eps:.4g}, "
                f"the rest dropped by hand); {mend}, keep some in data/overrides.csv, or set filter.allow_empty: true"
            )


def _reasons(inputs: Inputs, decision: Decision) -> list[str]:
    phrases = neighbour_phrases(inputs.neighbours, inputs.evidence.labels, inputs.class_names)
    reasons = [
        f"{dbscan_reason(radius, decision.eps, is_noise=noise)}; {phrase}"
        for radius, noise, phrase in zip(decision.values.tolist(), decision.is_noise.tolist(), phrases, strict=True)
    ]
    for row, override in inputs.overrides.items():
        reasons[row] = by_hand(override.decision, override.note)
    return reasons


def _points(inputs: Inputs, decision: Decision, keep: NDArray[np.bool_]) -> pa.Table:
    manifest, predictions = inputs.manifest, inputs.predictions
    x, y = inputs.evidence.coordinates.astype(np.float32).T
    return pa.table(
        {
            "sample_id": manifest["sample_id"],
            "path": manifest["path"],
            "sha256": manifest["sha256"],
            "label": manifest["label"],
            "label_name": manifest["label_name"],
            "predicted": predictions["predicted"],
            "confidence": predictions["confidence"],
            "x": np.ascontiguousarray(x),
            "y": np.ascontiguousarray(y),
            "cluster": decision.clusters,
            "is_noise": decision.is_noise,
            "eps": np.full(len(keep), decision.eps),
            "score": decision.scores,
            "reason": pa.array(_reasons(inputs, decision), pa.string()),
            "neighbours": pa.array(list(inputs.neighbours), pa.list_(pa.int32())),
            "keep": keep,
        }
    )


def _metrics(inputs: Inputs, config: FilterConfig, decision: Decision, keep: NDArray[np.bool_]) -> dict[str, Any]:
    labels, noise = inputs.evidence.labels, decision.is_noise
    thresholds = curve_thresholds(decision.values)
    decisions = [override.decision for override in inputs.overrides.values()]
    return {
        **_counts(keep, noise),
        "eps": decision.eps,
        "requested_share": config.drop_share,
        "achieved_share": float(noise.mean()),
        "share_note": decision.share_note,
        "overrides": {"keep": decisions.count("keep"), "drop": decisions.count("drop")},
        "classes": {
            inputs.class_names[label]: {**_counts(keep[labels == label], noise[labels == label]), "eps": decision.eps}
            for label in np.unique(labels)
        },
        "settings": config.model_dump(),
        "curve": {"eps": thresholds.tolist(), "share": shares_above(decision.values, thresholds).tolist()},
    }


def _counts(keep: NDArray[np.bool_], noise: NDArray[np.bool_]) -> dict[str, Any]:
    return {
        "n_total": len(keep),
        "n_kept": int(keep.sum()),
        "kept_share": float(keep.mean()),
        "n_noise": int(noise.sum()),
    }


def _write(context: StageContext, inputs: Inputs, decision: Decision, keep: NDArray[np.bool_]) -> None:
    data, network, config = context.data, str(context.item), context.params.filter
    points = _points(inputs, decision, keep)
    write_parquet(data.points(network), points)
    write_csv(data.kept(network), points.filter(pa.array(keep)).select(["sample_id", "path", "label_name"]))
    dropped = points.filter(pa.array(~keep)).select(["sample_id", "path", "label_name", "score", "reason"])
    write_csv(data.dropped(network), dropped.sort_by([("score", "descending"), ("sample_id", "ascending")]))
    write_json(data.filter_metrics(network), _metrics(inputs, config, decision, keep))
    write_provenance(
        data.provenance("filter", network),
        stage=context.name,
        parameters=config.model_dump(mode="json"),
        inputs=[data.manifest("train"), data.predictions(network), data.embedding(network), data.overrides],
        outputs=[data.points(network), data.kept(network), data.dropped(network), data.filter_metrics(network)],
    )


def main() -> None:
    """Run the stage on the process's arguments and exit."""
    run_stage("filter", filter_images, item="network")


if __name__ == "__main__":
    main()
