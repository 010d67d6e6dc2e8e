"""List the most suspect rows of a filter's points for a terminal, with the labels that the evidence suggests."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.scoring.base import ScorerInputs
from pipeline.stats.formatting import MISSING

_REASON_WIDTH = 72


def suggested_labels(inputs: ScorerInputs, n_classes: int) -> NDArray[np.int64] | None:
    """Return the label (N,) that the evidence suggests for each row.

    It is the most probable class, or without probabilities the one of most neighbors; of ties the first class. None
    with one class, or without either evidence.
    """
    if n_classes < 2:
        return None
    if inputs.probabilities is not None:
        return np.asarray(inputs.probabilities.argmax(axis=1), dtype=np.int64)
    if inputs.neighbors is None:
        return None
    votes = np.zeros((len(inputs.labels), n_classes), dtype=np.int32)
    np.add.at(votes, (np.arange(len(votes))[:, None], inputs.labels[inputs.neighbors]), 1)
    return np.asarray(votes.argmax(axis=1), dtype=np.int64)


def suspect_lines(
    points: pa.Table, suggested: NDArray[np.int64] | None, class_names: Sequence[str], n: int
) -> Iterator[str]:
    """Yield a heading and a line for each of the first `n` dropped rows, the most suspect first.

    Args:
        points: as `points_table` returns them.
        suggested: (N,) class numbers; shown where they differ from the label.
    """
    dropped = points.filter(pa.compute.invert(points["keep"]))
    order = dropped.sort_by([("score", "descending"), ("sample_id", "ascending")]).slice(0, n)
    name = "path" if "path" in points.column_names else "sample_id"
    rows = [("score", name, "label", "suggested", "reason")]
    for row in order.to_pylist():
        number = None if suggested is None else int(suggested[row["sample_id"]])
        differs = number is not None and number != row["label"]
        rows.append(
            (
                f"{row['score']:.3f}",
                str(row[name]),
                row["label_name"],
                class_names[number] if differs and number is not None else MISSING,
                _shortened(row["reason"]),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _shortened(text: str) -> str:
    return text if len(text) <= _REASON_WIDTH else f"{text[: _REASON_WIDTH - 3]}..."
