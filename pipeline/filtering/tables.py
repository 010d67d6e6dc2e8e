"""Build the filter's tables and metrics: points, kept.csv, dropped.csv and metrics.json."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.artifacts.overrides import DECISIONS
from pipeline.artifacts.prepared import PLANTED_COLUMN
from pipeline.artifacts.tables import list_array
from pipeline.config.filter import FilterConfig
from pipeline.filtering.apply import SHOWN_NEIGHBORS, FilterContext, FilterOutcome
from pipeline.scoring.base import ScorerInputs
from pipeline.scoring.thresholds import curve_thresholds, shares_above


def points_table(images: pa.Table, inputs: ScorerInputs, sieved: FilterOutcome, class_names: Sequence[str]) -> pa.Table:
    """Build points.parquet, one row per image.

    Args:
        images: sample_id, path, sha256, label, label_name, predicted, confidence; unknown columns may be
            missing. They come before the columns that the filter adds.
        class_names: one per class.
    """
    decision = sieved.decision
    table = images
    if inputs.embeddings is not None:
        for name, values in zip("xy", inputs.embeddings[0].astype(np.float32).T, strict=True):
            table = table.append_column(name, pa.array(np.ascontiguousarray(values)))
    added = {
        "cluster": pa.array(decision.clusters),
        "is_noise": pa.array(decision.is_noise),
        "eps": pa.array(decision.thresholds),
        "score": pa.array(decision.scores),
        "reason": pa.array(sieved.reasons, pa.string()),
    }
    if inputs.neighbors is not None:
        nearest = inputs.neighbors[:, :SHOWN_NEIGHBORS].astype(np.int32)
        added["neighbours"] = list_array(nearest)
        added["neighbour_labels"] = list_array(inputs.labels[nearest].astype(np.int32))
    if sieved.redundant is not None:
        added["near_duplicate"] = pa.array(sieved.redundant)
    added["keep"] = pa.array(sieved.keep)
    added["corrected_label"] = pa.array(sieved.labels)
    added["corrected_label_name"] = _names(sieved.labels, class_names)
    if (suggestion := sieved.suggestion) is not None:
        added["suggested_label"] = pa.array(suggestion.labels)
        added["suggested_label_name"] = _names(suggestion.labels, class_names)
        added["suggested_probability"] = pa.array(suggestion.probabilities)
    for name, column in added.items():
        table = table.append_column(name, column)
    return table


def _names(labels: NDArray[np.int64], class_names: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(labels, pa.array(class_names, pa.string())).dictionary_decode()


def kept_and_dropped(points: pa.Table, n_planted: int | None = None) -> tuple[pa.Table, pa.Table]:
    """Return the tables kept.csv, and dropped.csv with the most suspect image first.

    In kept.csv, label_name is the label after overrides.

    Args:
        n_planted: number of training labels that were changed on purpose. Both tables then say so in every
            row, so that nobody who reads a part of the file overlooks it.
    """
    if n_planted is not None:
        points = points.append_column(PLANTED_COLUMN, pa.array(np.full(len(points), n_planted)))
    columns = [name for name in ("sample_id", "path", "label_name", PLANTED_COLUMN) if name in points.column_names]
    suggestion = [name for name in ("suggested_label_name", "suggested_probability") if name in points.column_names]
    corrected = points.set_column(points.column_names.index("label_name"), "label_name", points["corrected_label_name"])
    kept = corrected.filter(points["keep"]).select(columns)
    dropped = points.filter(pa.compute.invert(points["keep"])).select([*columns, "score", "reason", *suggestion])
    return kept, dropped.sort_by([("score", "descending"), ("sample_id", "ascending")])


def filter_metrics(
    inputs: ScorerInputs, sieved: FilterOutcome, config: FilterConfig, context: FilterContext
) -> dict[str, Any]:
    """Return the content of metrics.json.

    `eps` is the threshold in the scorer's unit, null if classes differ; `wrong_share` is null if it was not estimated,
    `near_duplicates` if they were not searched for; the stage that searches fills it in.
    """
    labels, decision, estimate = inputs.labels, sieved.decision, sieved.estimate
    noise, thresholds = decision.is_noise, decision.thresholds
    curve = curve_thresholds(decision.values)
    decisions = [override.decision for override in context.overrides.values()]
    is_shared = bool((thresholds == thresholds[0]).all())
    requested = config.drop_fraction_for(context.network) if estimate is None else estimate.extrapolated.share
    return {
        **_counts(sieved.keep, noise),
        "eps": float(thresholds[0]) if is_shared else None,
        "requested_share": requested,
        "wrong_share": estimate and asdict(estimate),
        "achieved_share": float(noise.mean()),
        "share_note": decision.share_note,
        "near_duplicates": None,
        "overrides": {decision: decisions.count(decision) for decision in DECISIONS},
        "stability_over_maps": sieved.stability,
        "classes": {
            context.class_names[label]: {
                **_counts(sieved.keep[labels == label], noise[labels == label]),
                "eps": float(thresholds[labels == label][0]),
            }
            for label in np.unique(labels)
        },
        "settings": config.model_dump(),
        "curve": {"eps": curve.tolist(), "share": shares_above(decision.values, curve).tolist()},
    }


def _counts(keep: NDArray[np.bool_], noise: NDArray[np.bool_]) -> dict[str, Any]:
    return {
        "n_total": len(keep),
        "n_kept": int(keep.sum()),
        "kept_share": float(keep.mean()),
        "n_noise": int(noise.sum()),
    }
